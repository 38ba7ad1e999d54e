/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What must hold, of programs that know no verbs: each miss is counted and told with its line. */
#ifndef ROCEBUD_PEER_CHECKS_H
#define ROCEBUD_PEER_CHECKS_H
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int failures;
static const char *current = ""; /* what is tried */

#define CHECK(holds)                                                                                   \
	do {                                                                                           \
		if (!(holds)) {                                                                        \
			failures++;                                                                    \
			printf("FAIL %s line %d: %s (errno %d, %s)\n", current, __LINE__, #holds, errno, strerror(errno)); \
		}                                                                                      \
	} while (0)
#define IS(call, error) CHECK((errno = 0, (call)) < 0 && errno == (error))

#endif
