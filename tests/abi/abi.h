/* What the C programs of tests/abi share. */
#ifndef ROCEBUD_TESTS_ABI_H
#define ROCEBUD_TESTS_ABI_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures, checks;

/* The set-up failed: nothing can be said about what is under test. */
#define NEED(cond)                                                                     \
	do {                                                                           \
		if (!(cond)) {                                                         \
			printf("%s:%d: cannot go on: %s (%s)\n", __FILE__, __LINE__,   \
			       #cond, strerror(errno));                                \
			exit(2);                                                       \
		}                                                                      \
	} while (0)

#define SAME(is, want)                                                                 \
	do {                                                                           \
		long is_ = (long)(is), want_ = (long)(want);                           \
		checks++;                                                              \
		if (is_ != want_) {                                                    \
			failures++;                                                    \
			printf("FAIL %s:%d: %s is %ld, should be %ld\n", __FILE__,     \
			       __LINE__, #is, is_, want_);                             \
		}                                                                      \
	} while (0)

#define TRUE(cond)                                                                     \
	do {                                                                           \
		checks++;                                                              \
		if (!(cond)) {                                                         \
			failures++;                                                    \
			printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #cond);         \
		}                                                                      \
	} while (0)

/* A call that answers NULL and sets errno. */
#define NULL_AND(call, want)                                                           \
	do {                                                                           \
		errno = 0;                                                             \
		TRUE((call) == NULL);                                                  \
		SAME(errno, want);                                                     \
	} while (0)

/* A call that answers -1 and sets errno. */
#define MINUS_AND(call, want)                                                          \
	do {                                                                           \
		errno = 0;                                                             \
		SAME(call, -1);                                                        \
		SAME(errno, want);                                                     \
	} while (0)

#define RUN(test)                                                                      \
	do {                                                                           \
		int before_ = failures;                                                \
		test;                                                                  \
		printf("%s %s\n", failures == before_ ? "ok  " : "FAIL", #test);       \
		fflush(stdout);                                                        \
	} while (0)

static inline int verdict(void)
{
	printf("%d checks, %d failed\n", checks, failures);
	return failures != 0;
}

/* The named device, or the first of ours. */
__attribute__((unused)) static struct ibv_context *open_device(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	NEED(list);
	for (int i = 0; i < n && !ctx; i++)
		if (name ? !strcmp(name, ibv_get_device_name(list[i]))
			 : !strncmp("rb_", ibv_get_device_name(list[i]), 3))
			ctx = ibv_open_device(list[i]);
	NEED(ctx);
	ibv_free_device_list(list);
	return ctx;
}

#endif
