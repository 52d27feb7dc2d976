/* test_status.c - the status message: what is told of sessions, pools and memory, and that all of
 * it fits one datagram however many there are. How it is printed is test_attnctl.c's. */
#include "schemas/version.h"
#include "tests/support/rigs/pool_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SESSIONS ATTND_SESSIONS_MAX

static int begin_rig(void **state)
{
    (void)pool_rig_setup_with_loop(state);
    pool_rig.service.start_ns = attnd_clock_ns();
    return 0;
}

static const Attnd__Status *status(void)
{
    assert_int_equal(attnd_call_status(pool_rig_begin(0)), 0);
    assert_int_equal(pool_rig.reply.result_case, ATTND__REPLY__RESULT_STATUS);
    return pool_rig.reply.status;
}

static void the_service_says_what_it_is(void **state)
{
    (void)state;
    pool_rig.service.totals =
        (struct attnd_work_stats){.runs = 1, .busy_ns = 3, .kv_bytes = 4, .tiles = 5};
    pool_rig.service.options.memory_max_bytes = 6;
    pool_rig.service.options.host_memory_max_bytes = 7;
    const Attnd__Status *it = status();
    assert_string_equal(it->version, ATTND_VERSION);
    assert_string_equal(it->backend, "stub");
    assert_string_equal(it->worker_state, "running");
    assert_string_equal(it->loop, "epoll");
    assert_true(it->has_uptime_ms && it->uptime_ms < 60000);
    assert_int_equal(it->tile_workers, 1);
    assert_int_equal(it->runs, 1);
    assert_int_equal(it->busy_ns, 3);
    assert_int_equal(it->kv_bytes, 4);
    assert_int_equal(it->tiles, 5);
    assert_int_equal(it->memory_max_bytes, 6);
    assert_int_equal(it->host_memory_max_bytes, 7);
    assert_false(it->has_device_memory_max_bytes); /* not given */
    pool_rig.service.options.device_memory_max_bytes = 8;
    assert_int_equal(status()->device_memory_max_bytes, 8);
}

static void what_there_is_not_is_left_out(void **state)
{
    (void)state;
    const Attnd__Status *it = status();
    assert_null(it->residency); /* no GPU */
    assert_false(it->has_sms || it->has_sms_resident || it->has_mps || it->has_launches ||
                 it->has_plan_bytes || it->has_twin_runs);
    assert_null(it->worker_last_end); /* no worker before this one */
    assert_int_equal(it->n_pools, 0);
    assert_int_equal(it->n_sessions, 2);
    assert_false(it->sessions[0]->has_prepared || it->sessions[0]->has_launches); /* no mailbox */
}

static void a_switch_cost_is_told_where_it_was_measured(void **state)
{
    (void)state;
    data_stub.residency = "elastic";
    assert_false(status()->has_switch_cost_us);
    data_stub.switch_cost_us = 287;
    const Attnd__Status *it = status();
    uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    Attnd__Status *read = attnd__status__unpack(NULL, attnd__status__pack(it, bytes), bytes);
    assert_true(read && read->has_switch_cost_us);
    assert_int_equal(read->switch_cost_us, 287);
    attnd__status__free_unpacked(read, NULL);
}

static void a_session_is_told_by_its_own_numbers(void **state)
{
    struct attnd_client *client = pool_rig.clients[1];
    (void)state;
    strcpy(client->name, "second");
    client->pid = 1234;
    client->in_flight = 7;
    client->stats = (struct attnd_work_stats){.runs = 10, .appends = 11, .busy_ns = 25};
    pool_rig.service.totals.busy_ns = 100;
    const Attnd__SessionStatus *session = status()->sessions[1];
    assert_int_equal(session->session, client->id);
    assert_string_equal(session->name, "second");
    assert_int_equal(session->pid, 1234);
    assert_int_equal(session->in_flight, 7);
    assert_int_equal(session->runs, 10);
    assert_int_equal(session->appends, 11);
    assert_int_equal(session->busy_ns, 25);
    assert_true(session->share > 0.2499 && session->share < 0.2501);
    assert_false(session->dying);
    client->state = ATTND_CLIENT_DYING;
    assert_true(status()->sessions[1]->dying);
    pool_rig.service.totals.busy_ns = 0; /* nobody has done anything: no share, and no division */
    assert_true(status()->sessions[1]->share == 0);
    client->state = ATTND_CLIENT_OPEN;
}

static void plans_are_counted_for_each_and_for_all(void **state)
{
    static struct attnd_plan_object plans[3];
    (void)state;
    pool_rig.clients[0]->plans[0] = &plans[0];
    pool_rig.clients[0]->plans[ATTND_HANDLES_MAX - 1] = &plans[1];
    pool_rig.clients[1]->plans[5] = &plans[2];
    const Attnd__Status *it = status();
    assert_int_equal(it->sessions[0]->plans, 2);
    assert_int_equal(it->sessions[1]->plans, 1);
    assert_int_equal(it->plans, 3);
}

static void memory_is_told_for_the_session_that_pays_the_pool_and_the_host(void **state)
{
    Attnd__PoolCreate desc = pool_rig_good_desc();
    (void)state;
    (void)pool_rig_make_memory(1, 8192);
    assert_int_equal(pool_rig_create(0, &desc), 0);
    uint64_t pool_bytes = pool_rig.reply.pool->memory_bytes;
    int32_t pages[3];
    assert_int_equal(attnd_lease_alloc(pool_rig.clients[0]->attachments[0], 3, pages, NULL), 0);

    const Attnd__Status *it = status();
    assert_int_equal(it->sessions[0]->memory_bytes, pool_bytes);
    assert_int_equal(it->sessions[1]->memory_bytes, 8192);
    assert_int_equal(it->sessions[1]->device_memory_bytes, 0);
    pool_rig.clients[1]->device_memory_bytes = 4096;
    it = status();
    pool_rig.clients[1]->device_memory_bytes = 0;
    assert_int_equal(it->sessions[1]->memory_bytes, 8192 + 4096);
    assert_int_equal(it->sessions[1]->device_memory_bytes, 4096);
    assert_int_equal(it->host_memory_bytes, pool_bytes + 8192);
    assert_int_equal(it->n_pools, 1);
    assert_int_equal(it->pools[0]->memory_bytes, pool_bytes);
    assert_int_equal(it->pools[0]->layers, desc.layers);
    assert_int_equal(it->pools[0]->pages, desc.pages);
    assert_int_equal(it->pools[0]->page_size, desc.page_size);
    assert_int_equal(it->pools[0]->pages_leased, 3);
    assert_int_equal(it->pools[0]->attached, 1);
    assert_true(it->heap_used_bytes > 0);
}

static void fill(struct attnd_work_stats *stats)
{
    memset(stats, 0xff, sizeof(*stats));
    for (uint32_t i = 0; i < ATTND_HISTOGRAM_BUCKETS; i++)
        stats->latency.counts[i] = stats->duration.counts[i] = ATTND_HISTOGRAM_COUNT_MAX;
}

/* Every session with the longest name and largest numbers, and as many pools as there may be. */
static void the_fullest_house_fits_a_datagram(void **state)
{
    static struct attnd_client clients[SESSIONS];
    static struct attnd_pool pools[ATTND_POOLS_MAX];
    struct attnd_client *before[SESSIONS];
    (void)state;
    memcpy(before, pool_rig.service.clients, sizeof(before));
    for (uint32_t i = 0; i < SESSIONS; i++) {
        clients[i] = (struct attnd_client){.service = &pool_rig.service,
                                           .id = UINT32_MAX,
                                           .pid = INT32_MAX,
                                           .in_flight = UINT32_MAX,
                                           .device_memory_bytes = UINT64_MAX,
                                           .state = ATTND_CLIENT_DYING};
        memset(clients[i].name, 'n', sizeof(clients[i].name) - 1);
        fill(&clients[i].stats);
        pool_rig.service.clients[i] = &clients[i];
    }
    for (uint32_t i = 0; i < ATTND_POOLS_MAX; i++) {
        pools[i].id = pools[i].refs = UINT32_MAX;
        memset(&pools[i].shape, 0xff, sizeof(pools[i].shape));
        pools[i].next = i ? &pools[i - 1] : NULL;
    }
    pool_rig.service.pools = &pools[ATTND_POOLS_MAX - 1];
    pool_rig.service.pools_count = ATTND_POOLS_MAX;
    fill(&pool_rig.service.totals);
    pool_rig.service.options.settings_count = ATTND_SETTINGS_MAX;
    for (uint32_t i = 0; i < ATTND_SETTINGS_MAX; i++) {
        struct attnd_setting *setting = &pool_rig.service.options.settings[i];
        *setting = (struct attnd_setting){.name = "device-memory-max", .origin = "command line"};
        memset(setting->value, 'v', sizeof(setting->value) - 1);
    }
    const Attnd__Status *it = status();
    size_t bytes = attnd__reply__get_packed_size(&pool_rig.reply);
    assert_int_equal(it->n_sessions, SESSIONS);
    assert_int_equal(it->n_pools, ATTND_POOLS_MAX);
    assert_true(bytes <= ATTND_DATAGRAM_BYTES_MAX);
    memcpy(pool_rig.service.clients, before, sizeof(before));
    pool_rig.service.pools = NULL;
    pool_rig.service.pools_count = 0;
    pool_rig.service.options.settings_count = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_rig, pool_rig_teardown_with_loop)
        TEST(the_service_says_what_it_is),
        TEST(what_there_is_not_is_left_out),
        TEST(a_switch_cost_is_told_where_it_was_measured),
        TEST(a_session_is_told_by_its_own_numbers),
        TEST(plans_are_counted_for_each_and_for_all),
        TEST(memory_is_told_for_the_session_that_pays_the_pool_and_the_host),
        TEST(the_fullest_house_fits_a_datagram),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
