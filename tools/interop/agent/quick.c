/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Preloaded into perftest: lines come as they are printed, and gettimeofday runs 64 times as fast.
 *
 * perftest asks gettimeofday for one thing, how long a cycle of the CPU is, and spins a quarter of a second each time it
 * wants to know: for each size of -a, at both ends. What it measures it measures in cycles. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#define FASTER 64

__attribute__((constructor)) static void by_lines(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	static long long begin;
	struct timespec t;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &t))
		return -1;
	long long us = t.tv_sec * 1000000LL + t.tv_nsec / 1000;
	if (!begin)
		begin = us;
	us = begin + (us - begin) * FASTER;
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}
