/* Private symbols without a real device: libmlx5 and libefa are bound to them and register
 * themselves when they are loaded; with ROCEBUD_REAL=off a call fails instead of crashing.
 *
 *   private [on]     "on": the distribution's libibverbs is expected to answer */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	int expect_real = argc > 1 && !strcmp(argv[1], "on");
	unsigned (*attrs)(unsigned, void *, int);
	int (*dealloc)(void *), failed = 0;
	void *(*alloc)(void *, int, size_t, void *, unsigned);
	const char *(*op)(int);

	if (!lib || !dlopen("libmlx5.so.1", RTLD_NOW) || !dlopen("libefa.so.1", RTLD_NOW)) {
		printf("cannot load: %s\n", dlerror());
		return 1;
	}
	attrs = dlvsym(lib, "__ioctl_final_num_attrs", "IBVERBS_PRIVATE_34");
	dealloc = dlvsym(lib, "ibv_cmd_dealloc_pd", "IBVERBS_PRIVATE_34");
	alloc = dlvsym(lib, "_verbs_init_and_alloc_context", "IBVERBS_PRIVATE_34");
	op = dlvsym(lib, "ibv_wr_opcode_str", "IBVERBS_PRIVATE_64");
	if (!attrs || !dealloc || !alloc || !op) {
		printf("a private symbol is missing\n");
		return 1;
	}
	/* Three arguments and a return value survive the trampoline: the count comes back when no
	 * other attribute is linked behind it. */
	for (int i = 0; i < 2; i++) {
		unsigned n = attrs(7, NULL, 0);

		if (n != (expect_real ? 7u : EOPNOTSUPP)) {
			printf("__ioctl_final_num_attrs answers %u\n", n);
			failed = 1;
		}
	}
	if (!expect_real) {
		if (dealloc(NULL) != EOPNOTSUPP) {
			printf("ibv_cmd_dealloc_pd does not refuse\n");
			failed = 1;
		}
		errno = 0;
		if (alloc(NULL, -1, 0, NULL, 0) || errno != EOPNOTSUPP) {
			printf("_verbs_init_and_alloc_context does not refuse\n");
			failed = 1;
		}
	}
	if (!failed)
		printf("private symbols %s\n", expect_real ? "reach the real library" : "refuse");
	return failed;
}
