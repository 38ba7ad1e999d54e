/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Whether the cores of this machine do as much as they can: a virtual machine may share each of them
 * with a neighbour, who takes half of what it does and is seen in no other figure.
 *   cores MILLISECONDS    prints "best B typical T taken N": what a piece of arithmetic took at best,
 *                         and typically on the slowest core, in nanoseconds; and how many times a second
 *                         the core that suffers most of it was away for a microsecond and more
 * Build: cc -O2 -o cores cores.c -lpthread */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CORES_MAX 256
#define PIECES_MAX 65536
/* A piece takes a microsecond or two, many times what it takes to read the clock. */
#define STEPS 2000
#define AWAY_NS 1000

static long long budget_ns;

struct core {
	int number;
	unsigned best, typical, taken;
};

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* As many additions at a time as a core has room for: none waits for another. */
static void piece(void)
{
	unsigned long a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
	for (int i = 0; i < STEPS; i++) {
		a += 1, b += 3, c += 5, d += 7, e += 9, f += 11;
		__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
	}
}

static int by_value(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
	return x < y ? -1 : x > y;
}

static void *measure(void *arg)
{
	struct core *core = arg;
	unsigned *took = calloc(PIECES_MAX, sizeof *took);
	cpu_set_t set;
	int n = 0;
	if (!took)
		exit(2);
	CPU_ZERO(&set);
	CPU_SET(core->number, &set);
	sched_setaffinity(0, sizeof set, &set);
	for (long long start = now_ns(), at = start; n < PIECES_MAX && at - start < budget_ns; n++) {
		piece();
		long long end = now_ns();
		took[n] = (unsigned)(end - at);
		at = end;
	}
	long long all_ns = 0;
	int away = 0;
	qsort(took, n, sizeof *took, by_value);
	for (int i = 0; i < n; i++) {
		all_ns += took[i];
		away += took[i] > took[n / 2] + AWAY_NS;
	}
	core->best = took[0];
	core->typical = took[n / 2];
	core->taken = (unsigned)(away * 1000000000LL / (all_ns + 1));
	free(took);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct core cores[CORES_MAX];
	static pthread_t threads[CORES_MAX];
	cpu_set_t ours;
	int n = 0;
	budget_ns = (argc > 1 ? atoll(argv[1]) : 50) * 1000000LL;
	if (budget_ns <= 0 || sched_getaffinity(0, sizeof ours, &ours)) {
		fprintf(stderr, "usage: cores MILLISECONDS\n");
		return 2;
	}
	for (int cpu = 0; cpu < CPU_SETSIZE && n < CORES_MAX; cpu++)
		if (CPU_ISSET(cpu, &ours))
			cores[n++].number = cpu;
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, measure, &cores[i]))
			return 2;
	struct core worst = { .best = -1u };
	for (int i = 0; i < n; i++) {
		pthread_join(threads[i], NULL);
		worst.best = cores[i].best < worst.best ? cores[i].best : worst.best;
		worst.typical = cores[i].typical > worst.typical ? cores[i].typical : worst.typical;
		worst.taken = cores[i].taken > worst.taken ? cores[i].taken : worst.taken;
	}
	printf("best %u typical %u taken %u\n", worst.best, worst.typical, worst.taken);
	return 0;
}
