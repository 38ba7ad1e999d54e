/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What a process uses: memory and descriptors. For the programs in which both must level off. */
#ifndef ROCEBUD_PEER_USAGE_H
#define ROCEBUD_PEER_USAGE_H
#include <dirent.h>
#include <stdio.h>

/* Resident kilobytes of data: code that runs for the first time is none. */
static inline long rss_kb(void)
{
	char line[256];
	long kb, sum = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "RssAnon: %ld", &kb) == 1 || sscanf(line, "RssShmem: %ld", &kb) == 1)
			sum += kb;
	if (f)
		fclose(f);
	return sum;
}

static inline int open_fds(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}
#endif
