/* tun_relay NS_A NS_B NAME: makes a tun interface NAME in each of two network namespaces (of
 * /run/netns) and carries packets between them until it is killed, as a VPN would on two machines.
 * Says "ready" when both are there. A packet that an interface refuses (it is down) is gone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void die(const char *what)
{
	fprintf(stderr, "tun_relay: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int tun_in(const char *ns, const char *name)
{
	char path[256];
	struct ifreq ifr = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd;

	snprintf(path, sizeof(path), "/run/netns/%s", ns);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		die(path);
	close(fd);
	if (access("/dev/net/tun", F_OK)) { /* a bare /dev has no node, although the kernel has tun */
		mkdir("/dev/net", 0755);
		mknod("/dev/net/tun", S_IFCHR | 0666, makedev(10, 200));
	}
	fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		die("/dev/net/tun");
	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	if (ioctl(fd, TUNSETIFF, &ifr))
		die(name);
	return fd;
}

/* Some packets, so that the other direction has its turn, too. */
static void carry(int from, int to)
{
	static char packet[65536];

	for (int i = 0; i < 64; i++) {
		ssize_t n = read(from, packet, sizeof(packet));

		if (n <= 0)
			return;
		if (write(to, packet, n) < 0 && errno != EIO && errno != EINVAL)
			perror("tun_relay: write");
	}
}

int main(int argc, char **argv)
{
	struct pollfd end[2] = { { .events = POLLIN }, { .events = POLLIN } };

	if (argc != 4) {
		fprintf(stderr, "usage: tun_relay NS_A NS_B NAME\n");
		return 2;
	}
	end[0].fd = tun_in(argv[1], argv[3]);
	end[1].fd = tun_in(argv[2], argv[3]);
	printf("ready\n");
	fflush(stdout);
	while (poll(end, 2, -1) >= 0 || errno == EINTR) {
		if (end[0].revents)
			carry(end[0].fd, end[1].fd);
		if (end[1].revents)
			carry(end[1].fd, end[0].fd);
	}
	die("poll");
}
