/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef ROCEBUD_FUZZ_CALLS_H
#define ROCEBUD_FUZZ_CALLS_H
#include "decode.h"

/* make.c */
void make_memory(struct world *w, struct input *in);
void change_memory(struct world *w, struct input *in);
void make_windows(struct world *w, struct input *in);
void make_queues(struct world *w, struct input *in);
void change_queues(struct world *w, struct input *in);
void make_srq(struct world *w, struct input *in);
void make_qp(struct world *w, struct input *in);
void make_ah(struct world *w, struct input *in);
void modify_qp(struct world *w, struct input *in);
void connect_pair(struct world *w, struct input *in);
void ask(struct world *w, struct input *in);

/* use.c */
void post_send(struct world *w, struct input *in);
void post_recv(struct world *w, struct input *in);
void post_ex(struct world *w, struct input *in);
void reap(struct world *w, struct input *in);
void reap_ex(struct world *w, struct input *in);
void take_events(struct world *w);
void destroy(struct world *w, struct input *in);
int destroy_all(struct world *w);

/* verbs_args.c */
void verbs_args(const uint8_t *data, size_t n);
#endif
