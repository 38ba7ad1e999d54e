/* Finds symbols by dlopen and dlvsym, as NCCL does: "libibverbs.so" first, then ".so.1", each
 * symbol in the node that NCCL names. Also checks that a symbol is not found in a node that it
 * does not belong to, and that the shell librdmacm.so.1 leads to rdma_* and r*. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static int failed;

static void want(void *lib, const char *name, const char *node, int there)
{
	int found = dlvsym(lib, name, node) != NULL;

	if (found != there) {
		printf("%s@%s: %s\n", name, node, found ? "found, but should not be" : "missing");
		failed = 1;
	}
}

int main(void)
{
	static const char *const v11[] = {
		"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name",
		"ibv_open_device", "ibv_close_device", "ibv_get_async_event",
		"ibv_ack_async_event", "ibv_query_device", "ibv_query_port", "ibv_query_gid",
		"ibv_query_qp", "ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr",
		"ibv_create_cq", "ibv_destroy_cq", "ibv_create_qp", "ibv_modify_qp",
		"ibv_destroy_qp", "ibv_fork_init", "ibv_event_type_str",
	};
	const char *names[] = {"libibverbs.so", "libibverbs.so.1"};
	void *lib = NULL, *cm;

	for (int i = 0; i < 2; i++) {
		lib = dlopen(names[i], RTLD_NOW);
		if (!lib) {
			printf("%s: %s\n", names[i], dlerror());
			return 1;
		}
	}
	for (unsigned i = 0; i < sizeof(v11) / sizeof(*v11); i++)
		want(lib, v11[i], "IBVERBS_1.1", 1);
	want(lib, "ibv_reg_mr_iova2", "IBVERBS_1.8", 1);
	want(lib, "ibv_query_ece", "IBVERBS_1.10", 1);
	want(lib, "ibv_set_ece", "IBVERBS_1.10", 1);
	want(lib, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", 1);
	want(lib, "ibv_alloc_dmah", "IBVERBS_1.15", 1);
	want(lib, "ibv_query_port_speed", "IBVERBS_1.16", 1);
	want(lib, "ibv_alloc_buf", "IBVERBS_1.17", 1);
	want(lib, "ibv_create_comp_cntr", "IBVERBS_1.18", 1);
	want(lib, "ibv_cmd_create_cq", "IBVERBS_PRIVATE_34", 1);
	want(lib, "ibv_cmd_create_cq", "IBVERBS_PRIVATE_57", 1);
	want(lib, "ibv_cmd_create_cq", "IBVERBS_PRIVATE_59", 1);
	want(lib, "ibv_cmd_create_cq", "IBVERBS_PRIVATE_64", 1);
	want(lib, "ibv_cmd_create_cq", "IBVERBS_PRIVATE_65", 1);
	want(lib, "ibv_query_gid_type", "IBVERBS_PRIVATE_34", 1);
	want(lib, "ibv_query_gid_type", "IBVERBS_PRIVATE_65", 1);
	want(lib, "verbs_register_driver_34", "IBVERBS_PRIVATE_34", 1);
	want(lib, "ibv_reg_mr_iova2", "IBVERBS_1.1", 0);
	want(lib, "ibv_create_qp", "IBVERBS_1.17", 0);

	cm = dlopen("librdmacm.so.1", RTLD_NOW);
	if (!cm) {
		printf("librdmacm.so.1: %s\n", dlerror());
		return 1;
	}
	want(cm, "rdma_create_id", "RDMACM_1.0", 1);
	want(cm, "rsocket", "RDMACM_1.0", 1);
	want(cm, "rdma_join_multicast_ex", "RDMACM_1.1", 1);
	want(cm, "rdma_establish", "RDMACM_1.2", 1);
	want(cm, "rdma_reject_ece", "RDMACM_1.3", 1);
	want(cm, "rdma_resolve_addrinfo", "RDMACM_1.4", 1);
	want(cm, "repoll_create", "RDMACM_1.5", 1);
	if (!failed)
		printf("every node holds what it should\n");
	return failed;
}
