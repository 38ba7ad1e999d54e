/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Two ends that speak UCP (UCX) and check every byte: tagged messages, active messages, put, get and
 * atomic adds. `ucp` serves, `ucp HOST` is the client; with `-c ADDRESS` in front the client connects to a
 * listener at that address instead of being told where the other worker is. UCX_TLS and UCX_NET_DEVICES choose what is under
 * test. Built with -lucp -lucs. */
#include "common.h"
#include <ucp/api/ucp.h>

#define PORT "18720"
#define MOST (3u << 20)

static const size_t SIZES[] = { 1, 8, 511, 512, 4088, 8256, 65536, 1000003, MOST };
#define N_SIZES (sizeof SIZES / sizeof *SIZES)

static ucp_worker_h worker;
static ucp_ep_h ep;
static int side; /* the side channel */

static uint8_t byte_of(uint32_t who, uint32_t round, size_t at)
{
	return (uint8_t)(((uint32_t)at * 2654435761u + who * 7919 + round * 104729) >> 11);
}

static void fill(uint8_t *p, size_t n, uint32_t who, uint32_t round)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte_of(who, round, i);
}

static void same(const char *what, const uint8_t *p, size_t n, uint32_t who, uint32_t round)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte_of(who, round, i)) {
			FAIL("%s of %zu bytes, round %u: byte %zu is wrong", what, n, round, i);
			return;
		}
}

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		fprintf(stderr, "%s: %s: %s\n", program, what, ucs_status_string(status));
		exit(2);
	}
}

/* Progress until a request is complete; a minute is far too long. */
static void finish(void *request, const char *what)
{
	if (!UCS_PTR_IS_PTR(request)) {
		check(UCS_PTR_STATUS(request), what);
		return;
	}
	uint64_t end = now_ns() + 60000000000u;
	ucs_status_t status;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		ucp_worker_progress(worker);
		if (now_ns() > end) {
			errno = ETIMEDOUT;
			DIE("%s", what);
		}
	}
	ucp_request_free(request);
	check(status, what);
}

static const ucp_request_param_t PLAIN;

static void flush(void) { finish(ucp_ep_flush_nbx(ep, &PLAIN), "flush"); }

/* Both sides have come this far; UCX goes on meanwhile, or the other side would wait for it. */
static void meet(void)
{
	uint32_t word = 0x600d;
	tcp_send(side, &word, sizeof word);
	uint64_t end = now_ns() + 60000000000u;
	while (recv(side, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof word) {
		ucp_worker_progress(worker);
		if (now_ns() > end) {
			errno = ETIMEDOUT;
			DIE("the other side");
		}
	}
	tcp_recv(side, &word, sizeof word);
}

static void tagged(uint32_t me, uint8_t *out, uint8_t *in)
{
	for (uint32_t i = 0; i < N_SIZES; i++)
		for (uint32_t round = 0; round < (SIZES[i] > 65536 ? 2 : 30); round++) {
			fill(out, SIZES[i], me, round);
			memset(in, 0, SIZES[i]);
			void *r = ucp_tag_recv_nbx(worker, in, SIZES[i], i, ~0ull, &PLAIN);
			void *s = ucp_tag_send_nbx(ep, out, SIZES[i], i, &PLAIN);
			finish(s, "ucp_tag_send_nbx");
			finish(r, "ucp_tag_recv_nbx");
			same("tagged message", in, SIZES[i], !me, round);
		}
	meet();
}

/* ---- active messages ---- */

struct inbox { uint8_t *to; size_t got; void *request; };

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
			  const ucp_am_recv_param_t *param)
{
	struct inbox *box = arg;
	if (header_length != 4 || memcmp(header, "head", 4))
		FAIL("active message: the header is wrong");
	box->got = length;
	if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
		box->request = ucp_am_recv_data_nbx(worker, data, box->to, length, &PLAIN);
	else
		memcpy(box->to, data, length);
	return UCS_OK;
}

static void active(uint32_t me, uint8_t *out, uint8_t *in)
{
	struct inbox box = { .to = in };
	ucp_am_handler_param_t handler = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
					   UCP_AM_HANDLER_PARAM_FIELD_ARG, .id = 7, .cb = on_am, .arg = &box };
	check(ucp_worker_set_am_recv_handler(worker, &handler), "ucp_worker_set_am_recv_handler");
	meet();
	for (uint32_t i = 0; i < N_SIZES; i++)
		for (uint32_t round = 0; round < (SIZES[i] > 65536 ? 2 : 10); round++) {
			box.got = 0;
			box.request = NULL;
			fill(out, SIZES[i], me, round);
			meet();
			void *s = ucp_am_send_nbx(ep, 7, "head", 4, out, SIZES[i], &PLAIN);
			uint64_t end = now_ns() + 60000000000u;
			while (!box.got && now_ns() < end)
				ucp_worker_progress(worker);
			finish(box.request, "ucp_am_recv_data_nbx");
			finish(s, "ucp_am_send_nbx");
			if (box.got != SIZES[i])
				FAIL("active message of %zu bytes: %zu came", SIZES[i], box.got);
			same("active message", in, SIZES[i], !me, round);
		}
	meet();
}

/* ---- remote memory ---- */

struct remote { uint64_t address; ucp_rkey_h key; };

static struct remote exchange_memory(ucp_context_h context, ucp_mem_h *mem, void *base, size_t length)
{
	ucp_mem_map_params_t map = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
				     .address = base, .length = length };
	check(ucp_mem_map(context, &map, mem), "ucp_mem_map");
	void *packed;
	size_t n;
	check(ucp_rkey_pack(context, *mem, &packed, &n), "ucp_rkey_pack");
	uint64_t mine[2] = { (uintptr_t)base, n }, theirs[2];
	tcp_send(side, mine, sizeof mine);
	tcp_send(side, packed, n);
	ucp_rkey_buffer_release(packed);
	tcp_recv(side, theirs, sizeof theirs);
	void *key = malloc(theirs[1]);
	tcp_recv(side, key, theirs[1]);
	struct remote r = { .address = theirs[0] };
	check(ucp_ep_rkey_unpack(ep, key, &r.key), "ucp_ep_rkey_unpack");
	free(key);
	return r;
}

/* In each one's memory: a part that is put into, a part that is got, a counter. */
static void remote_memory(ucp_context_h context, uint32_t me, uint8_t *out)
{
	size_t length = 2 * (size_t)MOST + 64;
	uint8_t *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ucp_mem_h mem;
	if (base == MAP_FAILED)
		DIE("mmap");
	struct remote r = exchange_memory(context, &mem, base, length);
	for (uint32_t i = 0; i < N_SIZES; i++)
		for (uint32_t round = 0; round < 3; round++) {
			size_t n = SIZES[i];
			fill(out, n, me, round);
			fill(base + MOST, n, me + 2, round);
			meet();
			finish(ucp_put_nbx(ep, out, n, r.address, r.key, &PLAIN), "ucp_put_nbx");
			flush();
			meet();
			same("put", base, n, !me, round);
			memset(out, 0, n);
			finish(ucp_get_nbx(ep, out, n, r.address + MOST, r.key, &PLAIN), "ucp_get_nbx");
			same("get", out, n, !me + 2, round);
			meet();
		}
	uint64_t one = 1, *counter = (uint64_t *)(base + 2 * (size_t)MOST);
	ucp_request_param_t u64 = { .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_contig(8) };
	for (int i = 0; i < 200; i++)
		finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, r.address + 2 * (uint64_t)MOST, r.key, &u64), "atomic");
	flush();
	meet();
	if (__atomic_load_n(counter, __ATOMIC_SEQ_CST) != 200)
		FAIL("200 atomic adds made %llu", (unsigned long long)*counter);
	ucp_rkey_destroy(r.key);
	check(ucp_mem_unmap(context, mem), "ucp_mem_unmap");
	munmap(base, length);
}

static void connect_ends(void)
{
	ucp_address_t *mine;
	size_t n;
	uint64_t length, theirs;
	check(ucp_worker_get_address(worker, &mine, &n), "ucp_worker_get_address");
	length = n;
	tcp_send(side, &length, sizeof length);
	tcp_send(side, mine, n);
	ucp_worker_release_address(worker, mine);
	tcp_recv(side, &theirs, sizeof theirs);
	void *address = malloc(theirs);
	tcp_recv(side, address, theirs);
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address };
	check(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
	free(address);
}

/* ---- a listener and its client, connected by whatever UCX_SOCKADDR_TLS_PRIORITY says ---- */

static void on_request(ucp_conn_request_h request, void *arg) { *(ucp_conn_request_h *)arg = request; }

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)ep;
	if (!*(int *)arg) /* the other side may close first */
		FAIL("endpoint: %s", ucs_status_string(status));
}

static int closing;

static void connect_by_listener(const char *where, uint32_t me)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST }, *a;
	if (getaddrinfo(where, "18721", &hints, &a))
		DIE("%s", where);
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER, .err_handler = { on_error, &closing } };
	if (me) {
		meet();
		params.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
		params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
		params.sockaddr.addr = a->ai_addr;
		params.sockaddr.addrlen = a->ai_addrlen;
		check(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
	} else {
		ucp_conn_request_h request = NULL;
		ucp_listener_h listener;
		ucp_listener_params_t l = { .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
			.sockaddr = { a->ai_addr, a->ai_addrlen }, .conn_handler = { on_request, &request } };
		check(ucp_listener_create(worker, &l, &listener), "ucp_listener_create");
		meet();
		for (uint64_t end = now_ns() + 60000000000u; !request; ucp_worker_progress(worker))
			if (now_ns() > end)
				DIE("nobody connects");
		params.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
		params.conn_request = request;
		check(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
		ucp_listener_destroy(listener);
	}
	freeaddrinfo(a);
}

/* Both ends of a connection close at about the same time: whoever is second finds it reset. */
static void close_whatever(void)
{
	void *request = ucp_ep_close_nbx(ep, &PLAIN);
	if (!UCS_PTR_IS_PTR(request))
		return;
	for (uint64_t end = now_ns() + 60000000000u; ucp_request_check_status(request) == UCS_INPROGRESS;) {
		ucp_worker_progress(worker);
		if (now_ns() > end)
			DIE("an endpoint does not close");
	}
	ucp_request_free(request);
}

int main(int argc, char **argv)
{
	program = "ucp";
	const char *where = NULL;
	if (argc > 2 && !strcmp(argv[1], "-c")) {
		where = argv[2];
		argv += 2;
		argc -= 2;
	}
	uint32_t me = argc > 1;
	if (me) {
		side = tcp_connect(argv[1], PORT, 60);
	} else {
		int listener = tcp_listen(PORT);
		side = tcp_accept(listener, 60);
		close(listener);
	}
	ucp_params_t features = { .field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_AMO64 };
	ucp_worker_params_t single = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_context_h context;
	check(ucp_init(&features, NULL, &context), "ucp_init");
	check(ucp_worker_create(context, &single, &worker), "ucp_worker_create");
	if (where)
		connect_by_listener(where, me);
	else
		connect_ends();
	uint8_t *out = malloc(MOST), *in = malloc(MOST);
	if (!out || !in)
		DIE("memory");
	tagged(me, out, in);
	active(me, out, in);
	remote_memory(context, me, out);
	closing = 1; /* from here on the other side may be the first to close */
	meet();
	if (where)
		close_whatever();
	else
		finish(ucp_ep_close_nbx(ep, &PLAIN), "ucp_ep_close_nbx");
	meet();
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	free(out);
	free(in);
	printf(failures ? "ucp: %d failures\n" : "ucp ok\n", failures);
	return failures != 0;
}
