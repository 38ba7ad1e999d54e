/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Decisions out of bytes, the objects that a program holds, and what a call may answer. */
#ifndef ROCEBUD_FUZZ_DECODE_H
#define ROCEBUD_FUZZ_DECODE_H

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LEN(a) (sizeof(a) / sizeof *(a))

struct input {
	const uint8_t *at, *end;
};

/* When the bytes run out every decision is 0. */
static inline uint8_t byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}
static inline uint32_t below(struct input *in, uint32_t n)
{
	return byte(in) % n;
}
static inline uint32_t raw(struct input *in)
{
	uint32_t v = 0;
	for (int i = 0; i < 4; i++)
		v = v << 8 | byte(in);
	return v;
}

/* Small, at a border, or anything. */
static inline uint32_t number(struct input *in)
{
	static const uint32_t odd[] = { 0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 100, 255, 256, 257, 1023, 1024, 4095,
		4096, 4097, 16384, 32767, 32768, 65535, 65536, 1 << 20, 0xffffff, 0x1000000, 0x7ffffffe, 0x7fffffff, 0x80000000,
		0x80000001, 0xfffffffe, 0xffffffff };
	uint8_t b = byte(in);
	return b < 0x60 ? b % 12 : b < 0xf0 ? odd[b % LEN(odd)] : raw(in);
}

/* Memory: a mapped part with a hole behind it, so that what runs over the end meets nobody else's. */
#define ARENA (256u << 10)
#define HOLE (64u << 20)
extern uint8_t *arena;

static inline uint64_t address(struct input *in)
{
	uint8_t b = byte(in);
	if (b < 0xc0)
		return (uintptr_t)arena + (uint64_t)b * 1021 % ARENA;
	switch (b % 6) {
	case 0: return 0;
	case 1: return (uintptr_t)arena + ARENA - 16;   /* a few bytes before the hole */
	case 2: return (uintptr_t)arena + ARENA + 4096; /* in the hole */
	case 3: return 0xffff800000000000u;             /* the kernel's */
	case 4: return UINT64_MAX - 15;
	default: return (uintptr_t)arena | 1;
	}
}
static inline uint64_t length(struct input *in)
{
	uint8_t b = byte(in);
	return b < 0xd0 ? (uint64_t)number(in) % (b < 0xa0 ? ARENA : UINT32_MAX) : b < 0xe0 ? SIZE_MAX : (uint64_t)number(in) << 32;
}

/* What the program holds. A place that is NULL is free. */
enum kind { PD, CQ, QP, SRQ, MR, MW, AH, DM, CHANNEL, KINDS };
#define PLACES 6
struct held {
	void *p;
	int ex;      /* CQ, QP: made by the extended call, with what it needs for the extended use */
};
struct world {
	struct ibv_context *ctx;
	union ibv_gid gid;
	struct held of[KINDS][PLACES];
};

/* One that is held; NULL when there is none. */
static inline void *some(struct world *w, struct input *in, enum kind k)
{
	uint32_t first = below(in, PLACES);
	for (uint32_t i = 0; i < PLACES; i++)
		if (w->of[k][(first + i) % PLACES].p)
			return w->of[k][(first + i) % PLACES].p;
	return NULL;
}

/* Keeps what a call has made; what does not fit is given back by the caller. */
static inline int keep(struct world *w, enum kind k, void *p, int ex)
{
	for (int i = 0; i < PLACES; i++)
		if (!w->of[k][i].p) {
			w->of[k][i] = (struct held){ p, ex };
			return 1;
		}
	return 0;
}
static inline int full(const struct world *w, enum kind k)
{
	for (int i = 0; i < PLACES; i++)
		if (!w->of[k][i].p)
			return 0;
	return 1;
}

#define BROKEN(...)                                            \
	do {                                                   \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
		fprintf(stderr, __VA_ARGS__);                  \
		fprintf(stderr, "\n");                         \
		abort();                                       \
	} while (0)

/* 0 or an errno that a call may give: EIO is what a panic in the library and a dead device give, and neither may be. */
#define CODE(call)                                                                            \
	({                                                                                    \
		int r_ = (call);                                                              \
		if (r_ < 0 || r_ > 133 || r_ == EIO || r_ == ENODEV)                          \
			BROKEN("%s answers %d", #call, r_);                                   \
		r_;                                                                           \
	})
/* an object, or NULL and errno */
#define OBJECT(call)                                                                          \
	({                                                                                    \
		errno = 0;                                                                    \
		__typeof__(call) p_ = (call);                                                 \
		if (!p_ && (errno <= 0 || errno > 133 || errno == EIO || errno == ENODEV))    \
			BROKEN("%s fails with errno %d", #call, errno);                       \
		p_;                                                                           \
	})
#endif
