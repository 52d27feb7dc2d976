/* test_client_control.c - calls over the socket: what they send, what they keep, how they fail. */
#include "client/attnd.h"
#include "schemas/abi.h"
#include "schemas/atomics.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"
#include "tests/support/harness/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MILLISECOND_NS UINT64_C(1000000)

static struct attnd_fault last(void)
{
    struct attnd_fault fault;
    attnd_last_fault(&fault);
    return fault;
}

static int is_handshake(const Attnd__Request *request)
{
    return request->call_case == ATTND__REQUEST__CALL_HELLO ||
           request->call_case == ATTND__REQUEST__CALL_MAPPED;
}

/* ---- memory ---- */

static void memory_made_by_the_service_is_mapped_and_shared(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_shm theirs;
    uint32_t memory;
    void *address;
    CHECK_OK(attnd_memory_create(session, 5000, &memory, &address));
    CHECK_EQUAL(memory, 1);
    CHECK(attnd_memory_address(session, memory) == address);
    CHECK_EQUAL(attnd_shm_map(fake.memory_fd, 5000, 1, &theirs, NULL), 0);
    theirs.fd = -1;
    memset(address, 0x5a, 5000);
    CHECK_EQUAL(((uint8_t *)theirs.address)[4999], 0x5a);
    attnd_shm_unmap(&theirs);

    CHECK_OK(attnd_memory_release(session, memory));
    CHECK(attnd_memory_address(session, memory) == NULL);
    CHECK_OK(attnd_memory_create(session, 5000, &memory, NULL));
    CHECK(attnd_memory_address(session, memory) == NULL);
    attnd_close(session);
    fake_stop(&fake);
}

static void memory_of_the_engine_goes_by_descriptor_which_stays_its_own(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    uint32_t memory;
    int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_OK(attnd_memory_register(session, fd, 4096, &memory));
    CHECK(fcntl(fd, F_GETFD) >= 0);
    CHECK(attnd_memory_address(session, memory) == NULL);
    CHECK_ERROR(attnd_memory_register(session, -1, 4096, &memory), ATTND_E_INVALID);
    close(fd);
    attnd_close(session);
    fake_stop(&fake);
}

static enum fake_verdict short_memory(struct fake_daemon *fake, const Attnd__Request *request,
                                      struct fake_reply *reply)
{
    (void)reply;
    if (request->call_case == ATTND__REQUEST__CALL_MEMORY_REGISTER)
        CHECK_EQUAL(ftruncate(fake->memory_fd, 0), 0);
    if (request->call_case == ATTND__REQUEST__CALL_MEMORY_RELEASE)
        (void)attnd_take32(fake->context, 1);
    return FAKE_REPLY;
}

static void memory_that_cannot_be_mapped_is_given_back(void **state)
{
    (void)state;
    uint32_t released = 0, memory;
    void *address;
    struct fake_daemon fake = {.spoil = short_memory, .context = &released};
    struct attnd_session *session = fake_open(&fake);
    CHECK_ERROR(attnd_memory_create(session, 5000, &memory, &address), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_SIZE);
    CHECK_EQUAL(attnd_peek32(&released), 1);
    attnd_close(session);
    fake_stop(&fake);
}

/* ---- pools ---- */

#define LAYERS 2u
#define POOL_BYTES 8192u

/* Answers pool calls: planes as asked for, or in one memory of the service, number 40. */
struct pools {
    Attnd__PoolReply reply;
    Attnd__PoolCreate desc;
    Attnd__Plane plane[2 * LAYERS];
    Attnd__Plane *k[LAYERS], *v[LAYERS];
    uint32_t releases;
};

static void describe(struct pools *pools)
{
    attnd__pool_create__init(&pools->desc);
    pools->desc.layers = LAYERS;
    pools->desc.pages = 6;
    pools->desc.page_size = 4;
    pools->desc.heads_kv = 2;
    pools->desc.dim_qk = pools->desc.dim_vo = 64;
    pools->desc.dtype = ATTND_DTYPE_BF16;
    pools->desc.page_owner = ATTND__PAGE_OWNER__OWNER_SERVICE;
    pools->desc.n_k = pools->desc.n_v = LAYERS;
    pools->desc.k = pools->k;
    pools->desc.v = pools->v;
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        attnd__plane__init(&pools->plane[i]);
        pools->plane[i].memory = 40;
        pools->plane[i].offset_bytes = 64 * i;
        pools->plane[i].stride_page = 512;
        *(i < LAYERS ? &pools->k[i] : &pools->v[i - LAYERS]) = &pools->plane[i];
    }
}

static void answer_pool(struct fake_daemon *fake, struct fake_reply *reply)
{
    struct pools *pools = fake->context;
    attnd__pool_reply__init(&pools->reply);
    pools->reply.pool = ++fake->next_handle;
    pools->reply.desc = &pools->desc;
    pools->reply.writable = 1;
    reply->message.result_case = ATTND__REPLY__RESULT_POOL;
    reply->message.pool = &pools->reply;
}

static enum fake_verdict serve_pools(struct fake_daemon *fake, const Attnd__Request *request,
                                     struct fake_reply *reply)
{
    struct pools *pools = fake->context;
    if (request->call_case == ATTND__REQUEST__CALL_POOL_RELEASE)
        (void)attnd_take32(&pools->releases, 1);
    if (request->call_case != ATTND__REQUEST__CALL_POOL_CREATE &&
        request->call_case != ATTND__REQUEST__CALL_POOL_ATTACH)
        return FAKE_REPLY;

    describe(pools);
    answer_pool(fake, reply);
    if (request->call_case == ATTND__REQUEST__CALL_POOL_CREATE && request->pool_create->n_k > 0) {
        for (uint32_t i = 0; i < LAYERS; i++) {
            pools->plane[i].memory = request->pool_create->k[i]->memory;
            pools->plane[i].stride_head = request->pool_create->k[i]->stride_head;
            pools->plane[LAYERS + i].offset_bytes = request->pool_create->v[i]->offset_bytes;
        }
        return FAKE_REPLY;
    }
    if (fake->memory_fd < 0)
        CHECK_EQUAL(attnd_shm_create_unmapped("pool", POOL_BYTES, &fake->memory_fd, NULL), 0);
    pools->reply.memory = 40;
    pools->reply.memory_bytes = POOL_BYTES;
    reply->fds[reply->fd_count++] = fake->memory_fd;
    return FAKE_REPLY;
}

static const struct attnd_pool_desc small_pool = {.size = sizeof(small_pool),
                                                  .layers = LAYERS,
                                                  .pages = 6,
                                                  .page_size = 4,
                                                  .heads_kv = 2,
                                                  .dim_qk = 64,
                                                  .dim_vo = 64,
                                                  .dtype = ATTND_DTYPE_BF16,
                                                  .page_owner = ATTND_PAGES_OF_SERVICE};

static void a_pool_of_the_service_is_mapped_once_however_often_it_is_met(void **state)
{
    (void)state;
    struct pools pools = {0};
    struct fake_daemon fake = {.spoil = serve_pools, .context = &pools};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_pool_info first = {.size = sizeof(first)}, second = {.size = sizeof(second)};
    struct attnd_token token;
    uint32_t created, attached;
    CHECK_OK(attnd_pool_create(session, &small_pool, &created));
    CHECK_OK(attnd_pool_share(session, created, 1, &token));
    CHECK_EQUAL(token.bytes[15], 16);
    CHECK_OK(attnd_pool_attach(session, &token, &attached));
    CHECK(created != attached);
    CHECK_OK(attnd_pool_info(session, created, &first));
    CHECK_OK(attnd_pool_info(session, attached, &second));
    CHECK(first.address != NULL && first.address == second.address);
    CHECK_EQUAL(first.memory, 40);
    CHECK_EQUAL(first.memory_bytes, POOL_BYTES);
    CHECK_EQUAL(first.writable, 1);
    CHECK_EQUAL(first.desc.layers, LAYERS);
    CHECK_EQUAL(first.desc.dtype, ATTND_DTYPE_BF16);
    CHECK_EQUAL(first.desc.page_owner, ATTND_PAGES_OF_SERVICE);
    CHECK_EQUAL(first.desc.k[1].offset_bytes, 64);
    CHECK_EQUAL(first.desc.v[1].offset_bytes, 192);
    CHECK_EQUAL(first.desc.v[1].stride_page, 512);
    CHECK(attnd_memory_address(session, 40) == first.address);

    CHECK_OK(attnd_pool_release(session, created));
    memset(second.address, 1, POOL_BYTES); /* still mapped: the other pool uses it */
    CHECK_OK(attnd_pool_release(session, attached));
    CHECK(attnd_memory_address(session, 40) == NULL);
    CHECK_ERROR(attnd_pool_info(session, attached, &second), ATTND_E_UNKNOWN);
    attnd_close(session);
    fake_stop(&fake);
}

static void planes_of_the_engine_are_sent_and_told_as_the_daemon_names_them(void **state)
{
    (void)state;
    struct pools pools = {0};
    struct fake_daemon fake = {.spoil = serve_pools, .context = &pools};
    struct attnd_session *session = fake_open(&fake);
    const struct attnd_plane k[LAYERS] = {{.memory = 8, .stride_head = 64},
                                          {.memory = 9, .stride_head = 128}};
    const struct attnd_plane v[LAYERS] = {{.offset_bytes = 1000}, {.offset_bytes = 2000}};
    struct attnd_pool_desc desc = small_pool;
    struct attnd_pool_info info = {.size = sizeof(info)};
    uint32_t pool;
    desc.k = k;
    CHECK_ERROR(attnd_pool_create(session, &desc, &pool), ATTND_E_INVALID);
    CHECK_EQUAL(last().field, ATTND_F_V);
    desc.v = v;
    CHECK_OK(attnd_pool_create(session, &desc, &pool));
    CHECK_OK(attnd_pool_info(session, pool, &info));
    CHECK_EQUAL(info.memory, 0);
    CHECK(info.address == NULL);
    CHECK_EQUAL(info.desc.k[0].memory, 8);
    CHECK_EQUAL(info.desc.k[1].memory, 9);
    CHECK_EQUAL(info.desc.k[1].stride_head, 128);
    CHECK_EQUAL(info.desc.v[1].offset_bytes, 2000);
    desc.layers = ATTND_LAYERS_MAX + 1;
    CHECK_ERROR(attnd_pool_create(session, &desc, &pool), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_LAYERS);
    attnd_close(session);
    fake_stop(&fake);
}

static enum fake_verdict short_pool(struct fake_daemon *fake, const Attnd__Request *request,
                                    struct fake_reply *reply)
{
    enum fake_verdict verdict = serve_pools(fake, request, reply);
    if (reply->message.result_case == ATTND__REPLY__RESULT_POOL)
        reply->message.pool->memory_bytes = 2 * POOL_BYTES;
    return verdict;
}

static void a_pool_whose_memory_is_too_short_is_given_back(void **state)
{
    (void)state;
    struct pools pools = {0};
    struct fake_daemon fake = {.spoil = short_pool, .context = &pools};
    struct attnd_session *session = fake_open(&fake);
    uint32_t pool;
    CHECK_ERROR(attnd_pool_create(session, &small_pool, &pool), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_SIZE);
    CHECK_EQUAL(attnd_peek32(&pools.releases), 1);
    attnd_close(session);
    fake_stop(&fake);
}

static void a_batch_of_a_plan_gets_the_type_of_its_pool(void **state)
{
    (void)state;
    struct pools pools = {0};
    struct fake_daemon fake = {.spoil = serve_pools, .context = &pools};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_plan_args args = {.size = sizeof(args), .heads_q = 4};
    static const int32_t zeros[2];
    const struct attnd_level level = {1, zeros, zeros, NULL, NULL};
    const struct attnd_batch batch = {.size = sizeof(batch), .level = &level};
    struct attnd_sqe sqe;
    uint32_t plan;
    CHECK_OK(attnd_pool_create(session, &small_pool, &args.pool));
    CHECK_OK(attnd_plan_create(session, &args, &plan));
    CHECK_OK(attnd_plan_set(session, plan, &batch, &(struct attnd_op){0}));
    CHECK_EQUAL(fake_take(&fake, &sqe), 1);
    Attnd__Batch *header = attnd__batch__unpack(NULL, sqe.u.set.header_bytes,
                                                fake.arena + sqe.u.set.header_offset_bytes);
    CHECK(header && header->dtype == ATTND_DTYPE_BF16 && header->heads_q == 4);
    attnd__batch__free_unpacked(header, NULL);
    attnd_close(session);
    fake_stop(&fake);
}

/* ---- leases ---- */

static void pages_come_and_go_in_lists(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    static int32_t pages[ATTND_LEASE_PAGES_MAX + 1];
    struct attnd_token ticket;
    uint32_t pool;
    CHECK_OK(attnd_pages_alloc(session, 1, ATTND_LEASE_PAGES_MAX, pages));
    CHECK_EQUAL(pages[0], 100);
    CHECK_EQUAL(pages[ATTND_LEASE_PAGES_MAX - 1], 100 + ATTND_LEASE_PAGES_MAX - 1);
    CHECK_OK(attnd_pages_share(session, 1, ATTND_LEASE_PAGES_MAX, pages));
    CHECK_OK(attnd_pages_free(session, 1, ATTND_LEASE_PAGES_MAX, pages));
    CHECK_OK(attnd_pages_offer(session, 1, ATTND_LEASE_PAGES_MAX, pages, 1000, &ticket));
    CHECK_EQUAL(ticket.bytes[0], 1);
    CHECK_EQUAL(attnd_pages_claim(session, &ticket, &pool, pages, 3), 3);
    CHECK_EQUAL(pool, 5);
    CHECK_EQUAL(pages[2], 102);

    CHECK_ERROR(attnd_pages_alloc(session, 1, ATTND_LEASE_PAGES_MAX + 1, pages), ATTND_E_RANGE);
    CHECK_EQUAL(last().field, ATTND_F_COUNT);
    pages[1] = -1;
    CHECK_ERROR(attnd_pages_free(session, 1, 2, pages), ATTND_E_RANGE);
    CHECK_EQUAL(last().index, 1);
    attnd_close(session);
    fake_stop(&fake);
}

static void more_pages_than_there_is_room_for_end_the_session(void **state)
{
    (void)state;
    struct fake_daemon fake = {0}; /* answers every claim with three pages */
    struct attnd_session *session = fake_open(&fake);
    struct attnd_token ticket = {{0}};
    int32_t pages[2];
    uint32_t pool;
    CHECK_ERROR(attnd_pages_claim(session, &ticket, &pool, pages, 2), ATTND_E_PROTOCOL);
    CHECK_ERROR(attnd_pages_free(session, 1, 0, NULL), ATTND_E_DISCONNECTED);
    attnd_close(session);
    fake_stop(&fake);
}

/* ---- failing ---- */

static enum fake_verdict refuse_pages(struct fake_daemon *fake, const Attnd__Request *request,
                                      struct fake_reply *reply)
{
    (void)fake;
    if (is_handshake(request))
        return FAKE_REPLY;
    Attnd__Reply *message = &reply->message;
    message->result_case = ATTND__REPLY__RESULT__NOT_SET;
    message->code = -ATTND_E_NOT_LEASED;
    message->has_field = message->has_index = message->has_value = message->has_limit = 1;
    message->field = ATTND_F_PAGES;
    message->index = 4;
    message->value = -5;
    message->limit = 6;
    return FAKE_REPLY;
}

static void *look_for_a_fault(void *context)
{
    struct attnd_fault *fault = context;
    attnd_last_fault(fault);
    return NULL;
}

static void a_refusal_is_the_last_fault_of_this_thread_only(void **state)
{
    (void)state;
    struct fake_daemon fake = {.spoil = refuse_pages};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_fault other = {.code = 1};
    int32_t page;
    pthread_t thread;
    char text[128];
    CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_NOT_LEASED);
    struct attnd_fault fault = last();
    CHECK_EQUAL(fault.code, -ATTND_E_NOT_LEASED);
    CHECK_EQUAL(fault.field, ATTND_F_PAGES);
    CHECK_EQUAL(fault.index, 4);
    CHECK_EQUAL(fault.value, -5);
    CHECK_EQUAL(fault.limit, 6);
    CHECK(strstr(attnd_fault_string(&fault, text, sizeof(text)), "ATTND_E_NOT_LEASED") != NULL);
    CHECK_EQUAL(pthread_create(&thread, NULL, look_for_a_fault, &other), 0);
    pthread_join(thread, NULL);
    CHECK_EQUAL(other.code, 0);
    CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_NOT_LEASED); /* not the end */
    attnd_close(session);
    fake_stop(&fake);
}

static enum fake_verdict die_later(struct fake_daemon *fake, const Attnd__Request *request,
                                   struct fake_reply *reply)
{
    (void)reply;
    if (is_handshake(request))
        return FAKE_REPLY;
    harness_await_asleep(getpid()); /* the client is in its poll */
    attnd_publish64(fake->context, attnd_clock_ns());
    return FAKE_DIE;
}

static void a_daemon_that_dies_in_a_call_ends_it_within_100_ms(void **state)
{
    (void)state;
    uint64_t died_ns = 0;
    struct fake_daemon fake = {.spoil = die_later, .context = &died_ns};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_completion done;
    int32_t page;
    CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_DISCONNECTED);
    CHECK(attnd_clock_ns() - attnd_observe64(&died_ns) < 100 * MILLISECOND_NS);
    CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_DISCONNECTED);
    CHECK_ERROR(attnd_wait(session, &done, 1, ATTND_FOREVER), ATTND_E_DISCONNECTED);
    attnd_close(session);
    fake_stop(&fake);
}

static enum fake_verdict say_nothing(struct fake_daemon *fake, const Attnd__Request *request,
                                     struct fake_reply *reply)
{
    (void)fake;
    (void)reply;
    return is_handshake(request) ? FAKE_REPLY : FAKE_SILENT;
}

static void a_silent_daemon_is_given_up_after_five_seconds(void **state)
{
    (void)state;
    struct fake_daemon fake = {.spoil = say_nothing};
    struct attnd_session *session = fake_open(&fake);
    int32_t page;
    uint64_t begin_ns = attnd_clock_ns();
    CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_DISCONNECTED);
    uint64_t took_ns = attnd_clock_ns() - begin_ns;
    CHECK(took_ns >= 5000 * MILLISECOND_NS && took_ns < 6000 * MILLISECOND_NS);
    CHECK_ERROR(attnd_cancel(session, 1), ATTND_E_DISCONNECTED);
    attnd_close(session);
    fake_stop(&fake);
}

static enum fake_verdict other_id(struct fake_daemon *fake, const Attnd__Request *request,
                                  struct fake_reply *reply)
{
    (void)fake;
    if (!is_handshake(request))
        reply->message.id++;
    return FAKE_REPLY;
}

static enum fake_verdict other_result(struct fake_daemon *fake, const Attnd__Request *request,
                                      struct fake_reply *reply)
{
    (void)fake;
    if (!is_handshake(request))
        reply->message.result_case = ATTND__REPLY__RESULT__NOT_SET;
    return FAKE_REPLY;
}

static enum fake_verdict too_many_planes(struct fake_daemon *fake, const Attnd__Request *request,
                                         struct fake_reply *reply)
{
    /* Twice what a buffer for the largest honest reply unpacks to, in a small datagram. */
    static Attnd__Status status = ATTND__STATUS__INIT;
    static Attnd__SessionStatus session = ATTND__SESSION_STATUS__INIT, *sessions[20000];
    (void)fake;
    if (is_handshake(request))
        return FAKE_REPLY;
    for (size_t i = 0; i < sizeof(sessions) / sizeof(sessions[0]); i++)
        sessions[i] = &session;
    status.n_sessions = sizeof(sessions) / sizeof(sessions[0]);
    status.sessions = sessions;
    reply->message.result_case = ATTND__REPLY__RESULT_STATUS;
    reply->message.status = &status;
    return FAKE_REPLY;
}

static void a_reply_that_makes_no_sense_ends_the_session(void **state)
{
    (void)state;
    static fake_spoil_fn *const spoils[] = {other_id, other_result, too_many_planes};
    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        struct fake_daemon fake = {.spoil = spoils[i]};
        struct attnd_session *session = fake_open(&fake);
        int32_t page;
        CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_PROTOCOL);
        CHECK_ERROR(attnd_pages_alloc(session, 1, 1, &page), ATTND_E_DISCONNECTED);
        attnd_close(session);
        fake_stop(&fake);
    }
}

static void structs_that_are_filled_respect_the_size_of_the_caller(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct {
        struct attnd_info info;
        uint64_t tail;
    } newer;
    memset(&newer, 0xff, sizeof(newer));
    newer.info.size = offsetof(struct attnd_info, isa);
    CHECK_OK(attnd_info(session, &newer.info));
    CHECK(strcmp(newer.info.backend, "fake") == 0);
    CHECK_EQUAL((unsigned char)newer.info.isa[0], 0xff);
    newer.info.size = sizeof(newer);
    CHECK_OK(attnd_info(session, &newer.info));
    CHECK_EQUAL(newer.info.ring_entries, 256);
    CHECK_EQUAL(newer.tail, 0);
    newer.info.size = 0;
    CHECK_ERROR(attnd_info(session, &newer.info), ATTND_E_INVALID);
    attnd_close(session);
    fake_stop(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_made_by_the_service_is_mapped_and_shared),
        cmocka_unit_test(memory_of_the_engine_goes_by_descriptor_which_stays_its_own),
        cmocka_unit_test(memory_that_cannot_be_mapped_is_given_back),
        cmocka_unit_test(a_pool_of_the_service_is_mapped_once_however_often_it_is_met),
        cmocka_unit_test(planes_of_the_engine_are_sent_and_told_as_the_daemon_names_them),
        cmocka_unit_test(a_pool_whose_memory_is_too_short_is_given_back),
        cmocka_unit_test(a_batch_of_a_plan_gets_the_type_of_its_pool),
        cmocka_unit_test(pages_come_and_go_in_lists),
        cmocka_unit_test(more_pages_than_there_is_room_for_end_the_session),
        cmocka_unit_test(a_refusal_is_the_last_fault_of_this_thread_only),
        cmocka_unit_test(a_daemon_that_dies_in_a_call_ends_it_within_100_ms),
        cmocka_unit_test(a_silent_daemon_is_given_up_after_five_seconds),
        cmocka_unit_test(a_reply_that_makes_no_sense_ends_the_session),
        cmocka_unit_test(structs_that_are_filled_respect_the_size_of_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
