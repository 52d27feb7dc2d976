/* test_control.c - calls that take longer than a piece of the loop's thread. */
#include "service/rpc/control.h"
#include "tests/support/rigs/pool_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LAYERS 1024u
#define DAEMON_BYTES (64u << 20)
#define NO_HANDLE 77u

static int peers[2]; /* the clients' ends */
static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];

static int with_sockets(void **state)
{
    (void)pool_rig_setup_with_loop(state);
    pool_rig.service.options.daemon_memory_max_bytes = DAEMON_BYTES;
    for (uint32_t i = 0; i < 2; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
        pool_rig.clients[i]->socket = ends[0];
        pool_rig.clients[i]->pidfd = -1;
        peers[i] = ends[1];
    }
    return 0;
}

static int without(void **state)
{
    for (uint32_t i = 0; i < 2; i++) {
        close(pool_rig.clients[i]->socket);
        close(peers[i]);
    }
    return pool_rig_teardown_with_loop(state);
}

static void say(uint32_t who, const Attnd__Request *request)
{
    const size_t size = attnd__request__get_packed_size(request);

    assert_true(size <= sizeof(bytes));
    attnd__request__pack(request, bytes);
    assert_int_equal(send(peers[who], bytes, size, 0), size);
}

/* A pool of all layers, each of which lies in the same place of @memory. */
static void ask_for_large_pool(uint32_t who, uint32_t memory)
{
    static Attnd__Plane *list[LAYERS];
    Attnd__Plane plane = pool_rig_good_plane(memory);
    Attnd__PoolCreate desc = pool_rig_good_desc();
    Attnd__Request request = ATTND__REQUEST__INIT;

    for (uint32_t i = 0; i < LAYERS; i++)
        list[i] = &plane;
    desc.layers = LAYERS;
    desc.n_k = desc.n_v = LAYERS;
    desc.k = desc.v = list;
    request.id = who + 1;
    request.call_case = ATTND__REQUEST__CALL_POOL_CREATE;
    request.pool_create = &desc;
    say(who, &request);
}

static void ask_for_no_pool(uint32_t who)
{
    Attnd__PoolRelease release = ATTND__POOL_RELEASE__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;

    release.pool = NO_HANDLE;
    request.id = who + 1;
    request.call_case = ATTND__REQUEST__CALL_POOL_RELEASE;
    request.pool_release = &release;
    say(who, &request);
}

/* NULL: there is none. */
static Attnd__Reply *reply_of(uint32_t who)
{
    const ssize_t got = recv(peers[who], bytes, sizeof(bytes), 0);

    return got < 0 ? NULL : attnd__reply__unpack(NULL, (size_t)got, bytes);
}

/* What one piece does for the client. @spent: its time is over when the request is unpacked. */
static int piece(uint32_t who, int spent)
{
    struct attnd_works *works = &pool_rig.service.works;
    struct attnd_account *before = attnd_work_enter(works, &pool_rig.clients[who]->account);

    if (spent)
        works->piece_ns = 1;
    const int rc = attnd_control_serve(pool_rig.clients[who]);
    (void)attnd_work_leave(works, before);
    return rc;
}

static void expect_unknown(uint32_t who, uint32_t value)
{
    Attnd__Reply *reply = reply_of(who);

    assert_non_null(reply);
    assert_int_equal(reply->id, who + 1);
    assert_int_equal(reply->code, -ATTND_E_UNKNOWN);
    assert_int_equal(reply->value, value);
    attnd__reply__free_unpacked(reply, NULL);
}

static void one_that_took_its_piece_to_unpack_is_served_behind_others(void **state)
{
    (void)state;
    ask_for_large_pool(0, NO_HANDLE + 1);
    assert_int_equal(piece(0, 1), ATTND_CONTROL_AGAIN);
    assert_true(pool_rig.service.used[ATTND_QUOTA_DAEMON] > 0);
    ask_for_no_pool(1);
    assert_int_equal(piece(1, 1), 0);
    expect_unknown(1, NO_HANDLE);
    assert_null(reply_of(0));
    assert_int_equal(piece(0, 0), 0);
    expect_unknown(0, NO_HANDLE + 1); /* nobody's bytes came between */
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_DAEMON], 0);
}

static void a_large_pool_is_described_behind_others(void **state)
{
    (void)state;
    const uint32_t memory = pool_rig_make_memory(0, MEMORY_BYTES);
    ask_for_large_pool(0, memory);
    assert_int_equal(piece(0, 1), ATTND_CONTROL_AGAIN); /* unpacked */
    assert_null(pool_rig.service.pools);
    assert_int_equal(piece(0, 1), ATTND_CONTROL_AGAIN); /* made */
    assert_non_null(pool_rig.service.pools);
    assert_null(reply_of(0));
    ask_for_no_pool(1);
    assert_int_equal(piece(1, 1), 0);
    expect_unknown(1, NO_HANDLE);
    assert_int_equal(piece(0, 1), 0);
    Attnd__Reply *reply = reply_of(0);
    assert_non_null(reply);
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->result_case, ATTND__REPLY__RESULT_POOL);
    assert_int_equal(reply->pool->desc->n_v, LAYERS);
    assert_int_equal(reply->pool->desc->v[LAYERS - 1]->memory, memory);
    attnd__reply__free_unpacked(reply, NULL);
}

static void one_that_has_time_left_is_served_at_once(void **state)
{
    (void)state;
    pool_rig.service.works.part_ns = UINT64_MAX;
    ask_for_large_pool(0, NO_HANDLE);
    assert_int_equal(piece(0, 0), 0);
    expect_unknown(0, NO_HANDLE);
    assert_int_equal(pool_rig.service.used[ATTND_QUOTA_DAEMON], 0);
}

static void one_without_memory_to_wait_is_served_at_once(void **state)
{
    (void)state;
    pool_rig.service.options.daemon_memory_max_bytes = 1;
    ask_for_large_pool(0, NO_HANDLE);
    assert_int_equal(piece(0, 1), 0);
    expect_unknown(0, NO_HANDLE);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, with_sockets, without)
    const struct CMUnitTest tests[] = {
        CASE(one_that_took_its_piece_to_unpack_is_served_behind_others),
        CASE(a_large_pool_is_described_behind_others),
        CASE(one_that_has_time_left_is_served_at_once),
        CASE(one_without_memory_to_wait_is_served_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
