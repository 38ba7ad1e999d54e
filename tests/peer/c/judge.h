/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Values and errnos compared, with the line of a difference. */
#ifndef ROCEBUD_PEER_JUDGE_H
#define ROCEBUD_PEER_JUDGE_H
#include "common.h"

#define LEN(a) (sizeof(a) / sizeof *(a))
#define SAME(what, is, want)                                                                      \
	do {                                                                                      \
		long long is_ = (long long)(is), want_ = (long long)(want);                       \
		if (is_ != want_)                                                                 \
			FAIL("line %d: %s is %lld, expected %lld", __LINE__, what, is_, want_);   \
	} while (0)
#define NULL_AND(what, call, e)                                                                   \
	do {                                                                                      \
		errno = 0;                                                                        \
		if ((call) != NULL)                                                               \
			FAIL("line %d: %s: succeeded", __LINE__, what);                           \
		else if (errno != (e))                                                            \
			FAIL("line %d: %s: errno %d, expected %d", __LINE__, what, errno, (e));   \
	} while (0)

#endif
