/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Two or more MPI ranks that check what they get: messages of many sizes, collectives, one-sided access.
 * Built with mpicc. Prints "mpi ok" on rank 0 when every rank found every byte right. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, failures;

static uint8_t byte_of(int from, int round, size_t at)
{
	uint32_t x = (uint32_t)(from * 7919 + round * 104729) + (uint32_t)at * 2654435761u;
	return (uint8_t)(x >> 13);
}

static void fill(uint8_t *p, size_t n, int from, int round)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte_of(from, round, i);
}

static void same(const char *what, const uint8_t *p, size_t n, int from, int round)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte_of(from, round, i)) {
			fprintf(stderr, "FAIL rank %d: %s round %d: byte %zu of %zu is wrong\n", rank, what, round, i, n);
			failures++;
			return;
		}
}

static uint8_t *room(size_t n)
{
	uint8_t *p = calloc(1, n);
	if (!p)
		MPI_Abort(MPI_COMM_WORLD, 2);
	return p;
}

/* Every rank sends to its right and receives from its left. */
static void messages(void)
{
	static const int SIZES[] = { 0, 1, 8, 511, 512, 4096, 8255, 8257, 65536, 1 << 20, (4 << 20) + 13 };
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	uint8_t *out = room((4 << 20) + 13), *in = room((4 << 20) + 13);
	for (unsigned i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
		for (int round = 0; round < (SIZES[i] > 65536 ? 2 : 20); round++) {
			fill(out, (size_t)SIZES[i], rank, round);
			memset(in, 0, (size_t)SIZES[i]);
			MPI_Sendrecv(out, SIZES[i], MPI_BYTE, right, round, in, SIZES[i], MPI_BYTE, left, round, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
			same("sendrecv", in, (size_t)SIZES[i], left, round);
		}
	free(out);
	free(in);
}

static void collectives(void)
{
	for (int round = 0; round < 50; round++) {
		MPI_Barrier(MPI_COMM_WORLD);
		long mine[257], sum[257];
		for (int i = 0; i < 257; i++)
			mine[i] = (long)(rank + 1) * (i + round);
		MPI_Allreduce(mine, sum, 257, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < 257; i++)
			if (sum[i] != (long)ranks * (ranks + 1) / 2 * (i + round)) {
				fprintf(stderr, "FAIL rank %d: allreduce round %d: [%d] is %ld\n", rank, round, i, sum[i]);
				failures++;
				return;
			}
	}
	enum { PIECE = 100000 };
	uint8_t *out = room((size_t)ranks * PIECE), *in = room((size_t)ranks * PIECE);
	for (int round = 0; round < 5; round++) {
		for (int r = 0; r < ranks; r++)
			fill(out + (size_t)r * PIECE, PIECE, rank * 100 + r, round);
		MPI_Alltoall(out, PIECE, MPI_BYTE, in, PIECE, MPI_BYTE, MPI_COMM_WORLD);
		for (int r = 0; r < ranks; r++)
			same("alltoall", in + (size_t)r * PIECE, PIECE, r * 100 + rank, round);
	}
	free(out);
	free(in);
}

/* The window's first half is put into by the left neighbour, the second half is got by it. */
static void one_sided(void)
{
	enum { HALF = 300000 };
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	uint8_t *base, *out = room(HALF), *in = room(HALF);
	MPI_Win win;
	MPI_Win_allocate(2 * HALF, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	for (int round = 0; round < 10; round++) {
		size_t n = round % 2 ? HALF : (size_t)round * 37 + 1;
		fill(out, n, rank, round);
		fill(base + HALF, HALF, rank + 50, round);
		MPI_Win_fence(0, win);
		MPI_Put(out, (int)n, MPI_BYTE, right, 0, (int)n, MPI_BYTE, win);
		MPI_Get(in, (int)n, MPI_BYTE, right, HALF, (int)n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		same("put", base, n, left, round);
		same("get", in, n, right + 50, round);
	}
	MPI_Win_free(&win);
	long *counter, one = 1, before;
	MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &win);
	*counter = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < 100; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0 && *counter != 100L * ranks) {
		fprintf(stderr, "FAIL: %d ranks added 100 each, the counter is %ld\n", ranks, *counter);
		failures++;
	}
	MPI_Win_free(&win);
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	messages();
	collectives();
	one_sided();
	int all = 0;
	MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf(all ? "mpi: %d failures\n" : "mpi ok\n", all);
	MPI_Finalize();
	return all != 0;
}
