/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The floor under our latency: 64 bytes to and fro over two UDP sockets that spin, nothing else.
 *   server: udp_pingpong PORT            ends when the client says so
 *   client: udp_pingpong PORT ADDRESS    prints "median X p99 Y" in microseconds of half a round trip
 * Build: cc -O2 -o udp_pingpong udp_pingpong.c */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 20000
#define WARM_UP 1000
#define BYTES 64

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Spins until a datagram is there. */
static ssize_t spin(int fd, void *buf, struct sockaddr_in *from)
{
	socklen_t n = sizeof *from;
	ssize_t r;
	while ((r = recvfrom(fd, buf, BYTES, MSG_DONTWAIT, (struct sockaddr *)from, &n)) < 0)
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			exit(2);
	return r;
}

static int serve(int fd)
{
	char buf[BYTES];
	struct sockaddr_in from;
	for (;;) {
		spin(fd, buf, &from);
		if (buf[0] == 'q')
			return 0;
		if (sendto(fd, buf, BYTES, 0, (struct sockaddr *)&from, sizeof from) != BYTES)
			return 2;
	}
}

static int ask(int fd, const struct sockaddr_in *to)
{
	static double took[ROUNDS];
	char buf[BYTES] = "p";
	struct sockaddr_in from;
	for (int i = -WARM_UP; i < ROUNDS; i++) {
		double start = now_us();
		if (sendto(fd, buf, BYTES, 0, (const struct sockaddr *)to, sizeof *to) != BYTES)
			return 2;
		spin(fd, buf, &from);
		if (i >= 0)
			took[i] = (now_us() - start) / 2;
	}
	buf[0] = 'q';
	sendto(fd, buf, BYTES, 0, (const struct sockaddr *)to, sizeof *to);
	qsort(took, ROUNDS, sizeof *took, by_value);
	printf("median %.2f p99 %.2f\n", took[ROUNDS / 2], took[ROUNDS * 99 / 100]);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: udp_pingpong PORT [ADDRESS]\n");
		return 2;
	}
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (argc > 2)
		return inet_pton(AF_INET, argv[2], &a.sin_addr) == 1 ? ask(fd, &a) : 2;
	if (bind(fd, (struct sockaddr *)&a, sizeof a)) {
		perror("bind");
		return 2;
	}
	return serve(fd);
}
