/* Prints every word and rate of verbs.h and rdma_cma.h; the output is compared with
 * words.expected, which the same program printed over rdma-core 44. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

int main(void)
{
	for (int i = -1; i < 26; i++)
		printf("wc %d %s\n", i, ibv_wc_status_str(i));
	for (int i = -1; i < 20; i++)
		printf("event %d %s\n", i, ibv_event_type_str(i));
	for (int i = -1; i < 8; i++)
		printf("port %d %s\n", i, ibv_port_state_str(i));
	for (int i = -1; i < 10; i++)
		printf("node %d %s\n", i, ibv_node_type_str(i));
	for (int i = -1; i < 16; i++)
		printf("cm %d %s\n", i, rdma_event_str(i));
	for (int i = -1; i < 28; i++)
		printf("rate %d mult %d mbps %d\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
	for (int i = -1; i < 600; i++)
		if (mult_to_ibv_rate(i))
			printf("mult %d rate %d\n", i, mult_to_ibv_rate(i));
	for (int i = 0; i < 2000000; i++)
		if (mbps_to_ibv_rate(i))
			printf("mbps %d rate %d\n", i, mbps_to_ibv_rate(i));
	return 0;
}
