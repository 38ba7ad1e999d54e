/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Opens a device again and again, from one list of devices, until it is gone.
 *
 *   gone -d DEVICE
 *
 * Prints "open" once, then "errno N" of the call that failed, and that of the next. */
#include "common.h"

#define PATIENCE_S 20

static int try(struct ibv_device *device)
{
	struct ibv_context *context = ibv_open_device(device);
	if (!context)
		return errno;
	if (ibv_close_device(context))
		DIE("ibv_close_device");
	return 0;
}

int main(int argc, char **argv)
{
	struct ibv_device **list, *device = NULL;
	int n, err;

	program = "gone";
	if (argc != 3 || strcmp(argv[1], "-d"))
		DIE("usage: gone -d DEVICE");
	if (!(list = ibv_get_device_list(&n)))
		DIE("ibv_get_device_list");
	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[2]))
			device = list[i];
	if (!device || try(device))
		DIE("%s cannot be opened", argv[2]);
	printf("open\n");
	fflush(stdout);
	for (uint64_t end = now_ns() + PATIENCE_S * 1000000000ull; !(err = try(device)); usleep(2000))
		if (now_ns() > end)
			DIE("%s is still there", argv[2]);
	printf("errno %d\nerrno %d\n", err, try(device));
	ibv_free_device_list(list);
	return 0;
}
