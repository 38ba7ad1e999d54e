/* SPDX-License-Identifier: MIT OR Apache-2.0
 * numbers: keys and queue pair numbers are no counters: 10,000 of each, and what one can tell about the next.
 *   numbers DEVICE
 * Build: cc -O2 -o numbers numbers.c -libverbs */
#include "common.h"

#define COUNT 10000
#define TOGETHER 1000 /* queue pairs at a time */
#define DIFFERENCES 4096

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* The steps from one number to the next, `bits` of them: none is frequent, as many go up as down, every bit is as
 * often set as not. Of as many random steps the most frequent of 4096 sorts comes less than 20 times in all of a
 * million trials. */
static void judge(const char *what, const uint32_t *numbers, unsigned bits)
{
	static uint32_t sorts[DIFFERENCES];
	unsigned up = 0, most = 0, set[32] = { 0 };
	memset(sorts, 0, sizeof sorts);
	for (unsigned i = 1; i < COUNT; i++) {
		uint32_t step = (numbers[i] - numbers[i - 1]) << (32 - bits);
		up += step < 0x80000000;
		uint32_t sort = step >> 20;
		if (++sorts[sort] > most)
			most = sorts[sort];
		for (unsigned b = 0; b < bits; b++)
			set[b] += numbers[i] >> b & 1;
	}
	printf("%s: %u of %u steps go up, the most frequent of 4096 sorts of step came %u times\n", what, up, COUNT - 1, most);
	if (up < COUNT * 46 / 100 || up > COUNT * 54 / 100 || most >= 20)
		FAIL("%s: their steps can be guessed", what);
	for (unsigned b = 0; b < bits; b++)
		if (set[b] < COUNT * 46 / 100 || set[b] > COUNT * 54 / 100)
			FAIL("%s: bit %u is set in %u of %u", what, b, set[b], COUNT);
}

static void keys(struct device *d)
{
	static struct ibv_mr *mrs[COUNT];
	static uint32_t numbers[COUNT];
	static char memory[4096];
	for (unsigned i = 0; i < COUNT; i++) {
		if (!(mrs[i] = ibv_reg_mr(d->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)))
			DIE("ibv_reg_mr");
		numbers[i] = mrs[i]->rkey;
	}
	judge("keys", numbers, 32);
	for (unsigned i = 0; i < COUNT; i++)
		if (ibv_dereg_mr(mrs[i]))
			FAIL("ibv_dereg_mr");
	qsort(numbers, COUNT, sizeof *numbers, by_value);
	for (unsigned i = 1; i < COUNT; i++)
		if (numbers[i] == numbers[i - 1])
			FAIL("two regions with the key 0x%x", numbers[i]);
}

/* The upper half of a number says which process it is, and that is no secret. */
static void queue_pairs(struct device *d)
{
	static struct ibv_qp *qps[TOGETHER];
	static uint32_t numbers[COUNT];
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	for (unsigned i = 0; i < COUNT; i++) {
		struct ibv_qp **qp = &qps[i % TOGETHER];
		if (*qp && ibv_destroy_qp(*qp))
			FAIL("ibv_destroy_qp");
		if (!cq || !(*qp = ibv_create_qp(d->pd, &a)))
			DIE("ibv_create_qp");
		numbers[i] = (*qp)->qp_num;
	}
	judge("queue pair numbers", numbers, 12);
	for (unsigned i = 0; i < TOGETHER; i++)
		if (ibv_destroy_qp(qps[i]))
			FAIL("ibv_destroy_qp");
	ibv_destroy_cq(cq);
}

int main(int argc, char **argv)
{
	struct device d;
	program = "numbers";
	open_device(&d, argc > 1 ? argv[1] : NULL, -1, 0);
	keys(&d);
	queue_pairs(&d);
	printf("numbers: %d failed\n", failures);
	return failures != 0;
}
