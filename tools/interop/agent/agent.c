/* SPDX-License-Identifier: MIT OR Apache-2.0
 *   rocebud-interop-agent serve ADDRESS PORT [PEER]
 *                                  answers connections, each in a process of its own; ADDRESS "*": any; PEER: only its
 *   rocebud-interop-agent verbs    scenarios on standard input and output
 *
 * Kinds of connection: "verbs" (scenarios), "run SECONDS BYTES" (a shell command of BYTES bytes follows; output
 * comes back as "o BYTES" and the bytes, the end as "x STATUS"; it is killed when the time is up or the runner
 * gone), "put MODE BYTES PATH" (a file follows; "ok" when it is written). */
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int read_line(int fd, char *line, size_t room)
{
	for (size_t n = 0; n + 1 < room; n++) {
		ssize_t r = read(fd, line + n, 1);
		if (r < 0 && errno == EINTR) {
			n--;
			continue;
		}
		if (r <= 0)
			return 0;
		if (line[n] == '\n') {
			line[n] = 0;
			return 1;
		}
	}
	return 0;
}

void write_all(int fd, const void *bytes, size_t n)
{
	for (const char *p = bytes; n;) {
		ssize_t r = write(fd, p, n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			exit(3);
		p += r;
		n -= (size_t)r;
	}
}

void say(int fd, const char *format, ...)
{
	char line[1024];
	va_list ap;
	va_start(ap, format);
	vsnprintf(line, sizeof line - 1, format, ap);
	va_end(ap);
	strcat(line, "\n");
	write_all(fd, line, strlen(line));
}

static char *read_bytes(int fd, size_t n)
{
	char *bytes = malloc(n + 1);
	if (!bytes)
		exit(3);
	for (size_t at = 0; at < n;) {
		ssize_t r = read(fd, bytes + at, n - at);
		if (r <= 0)
			exit(3);
		at += (size_t)r;
	}
	bytes[n] = 0;
	return bytes;
}

static long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Passes the command's output on until it ends, the time is up (124) or the runner is gone. */
static int relay(int from, int to, pid_t child, long long end)
{
	char bytes[16384];
	for (;;) {
		struct pollfd p[2] = { { .fd = from, .events = POLLIN }, { .fd = to, .events = POLLRDHUP } };
		long long left = end - now_ms();
		int n = left > 0 ? poll(p, 2, (int)(left < 200 ? left : 200)) : 0;
		if (p[1].revents || left <= 0) {
			kill(-child, SIGKILL);
			waitpid(child, NULL, 0);
			return 124;
		}
		ssize_t r = n > 0 && p[0].revents ? read(from, bytes, sizeof bytes) : -1;
		if (r > 0) {
			say(to, "o %zd", r);
			write_all(to, bytes, (size_t)r);
			continue;
		}
		/* what the command left running may hold the pipe: its own end counts */
		int status;
		if (waitpid(child, &status, r == 0 ? 0 : WNOHANG) == child) {
			fcntl(from, F_SETFL, O_NONBLOCK);
			while ((r = read(from, bytes, sizeof bytes)) > 0) {
				say(to, "o %zd", r);
				write_all(to, bytes, (size_t)r);
			}
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		}
	}
}

static int run(int fd, long seconds, size_t bytes)
{
	char *command = read_bytes(fd, bytes);
	int out[2];
	if (pipe(out))
		return 3;
	pid_t child = fork();
	if (child == 0) {
		setpgid(0, 0);
		int null = open("/dev/null", O_RDONLY);
		dup2(null, 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		for (int i = 3; i < 64; i++)
			close(i);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	if (child < 0)
		return 3;
	setpgid(child, child);
	close(out[1]);
	say(fd, "x %d", relay(out[0], fd, child, now_ms() + seconds * 1000));
	return 0;
}

static int put(int fd, int mode, size_t bytes, const char *path)
{
	char *content = read_bytes(fd, bytes);
	unlink(path); /* it may be running */
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
	if (file < 0) {
		say(fd, "error %s: %s", path, strerror(errno));
		return 1;
	}
	write_all(file, content, bytes);
	fchmod(file, (mode_t)mode);
	close(file);
	say(fd, "ok");
	return 0;
}

/* The runner's first line, then what it asked for. */
static int answer(int in, int out)
{
	char line[512], path[256];
	int version, mode, at = 0;
	long seconds;
	size_t bytes;
	if (!read_line(in, line, sizeof line))
		return 3;
	if (sscanf(line, "rocebud-interop %d %n", &version, &at) != 1 || !at) {
		say(out, "error not a runner of rocebud interop");
		return 3;
	}
	if (version != AGENT_VERSION) {
		say(out, "error agent version %d, runner version %d: build both from one tree", AGENT_VERSION, version);
		return 3;
	}
	say(out, "ok %d", AGENT_VERSION);
	const char *kind = line + at;
	if (!strcmp(kind, "verbs"))
		return scenarios(in, out);
	if (sscanf(kind, "run %ld %zu", &seconds, &bytes) == 2)
		return run(in, seconds, bytes);
	if (sscanf(kind, "put %o %zu %255s", (unsigned *)&mode, &bytes, path) == 3)
		return put(in, mode, bytes, path);
	say(out, "error unknown kind of connection: %s", kind);
	return 3;
}

/* An address as 16 bytes, IPv4 as IPv6 has it; 0: it is none. */
static int sixteen(const char *text, unsigned char *out)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	memcpy(out, mapped, sizeof mapped);
	return inet_pton(AF_INET, text, out + 12) == 1 || inet_pton(AF_INET6, text, out) == 1;
}

/* May this connection ask for anything? Everybody may, without `only`. */
static int welcome(int peer, const char *only)
{
	struct sockaddr_storage from = { 0 };
	socklen_t len = sizeof from;
	unsigned char want[16], is[16];
	char text[NI_MAXHOST] = "", line[512];
	if (!only)
		return 1;
	if (!getpeername(peer, (struct sockaddr *)&from, &len))
		getnameinfo((struct sockaddr *)&from, len, text, sizeof text, NULL, 0, NI_NUMERICHOST);
	if (sixteen(only, want) && sixteen(text, is) && !memcmp(want, is, sizeof want))
		return 1;
	fprintf(stderr, "agent: refused %s\n", text);
	read_line(peer, line, sizeof line); /* what is closed unread takes the answer along */
	say(peer, "error it was started with --from %s and answers nobody else", only);
	return 0;
}

/* A socket that listens there; "*": on every address, IPv6 if there is any. */
static int listener(const char *address, const char *port)
{
	int any = !strcmp(address, "*"), one = 1, zero = 0, fd = -1;
	struct addrinfo hints = { .ai_family = any ? AF_INET6 : AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
	for (int left = any ? 2 : 1; left > 0 && fd < 0; left--, hints.ai_family = AF_INET) {
		struct addrinfo *a = NULL;
		int e = getaddrinfo(any ? NULL : address, port, &hints, &a);
		if (e) {
			fprintf(stderr, "agent: %s port %s: %s\n", address, port, gai_strerror(e));
			return -1;
		}
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (a->ai_family == AF_INET6)
			setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? &zero : &one, sizeof one);
		if (fd >= 0 && (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 64))) {
			e = errno;
			close(fd);
			fd = -1;
			errno = e;
		}
		freeaddrinfo(a);
	}
	if (fd < 0)
		fprintf(stderr, "agent: cannot listen on %s port %s: %s\n", address, port, strerror(errno));
	return fd;
}

static int serve(const char *address, const char *port, const char *only)
{
	int one = 1, fd = listener(address, port);
	if (fd < 0)
		return 2;
	signal(SIGCHLD, SIG_IGN);
	printf("AGENT READY version %d port %s\n", AGENT_VERSION, port);
	fflush(stdout);
	for (;;) {
		int peer = accept(fd, NULL, NULL);
		if (peer < 0)
			continue;
		setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		setsockopt(peer, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
		if (fork() == 0) {
			signal(SIGCHLD, SIG_DFL);
			close(fd);
			exit(welcome(peer, only) ? answer(peer, peer) : 3);
		}
		close(peer);
	}
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if ((argc == 4 || argc == 5) && !strcmp(argv[1], "serve"))
		return serve(argv[2], argv[3], argv[4]);
	if (argc == 2 && !strcmp(argv[1], "verbs"))
		return answer(0, 1);
	fprintf(stderr, "usage: rocebud-interop-agent serve ADDRESS PORT [PEER] | verbs\n");
	return 2;
}
