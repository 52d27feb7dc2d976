/* test_control_decode.c - whatever a client sends becomes a request or a refusal, in bounded
 * memory.
 */
#include "ipc/fdpass.h"
#include "service/rpc/control_decode.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t memory[ATTND_CONTROL_DECODE_BYTES];

/* The datagram lies in memory of exactly its size, so that reading past it is seen by ASan. */
static int decode(const uint8_t *bytes, size_t size_bytes, Attnd__Request **request)
{
    struct attnd_admit_alloc alloc;
    uint8_t *own = malloc(size_bytes ? size_bytes : 1);
    memcpy(own, bytes, size_bytes);
    attnd_admit_alloc_init(&alloc, memory, sizeof(memory));
    int rc = attnd_control_decode(own, size_bytes, &alloc, request);
    free(own);
    return rc;
}

static size_t pack(const Attnd__Request *request, uint8_t *bytes)
{
    assert_true(attnd__request__get_packed_size(request) <= ATTND_DATAGRAM_BYTES_MAX);
    return attnd__request__pack(request, bytes);
}

/* A length-delimited field; tags below 16 and lengths below 128 only. */
static size_t put_field(uint8_t *bytes, uint32_t tag, const uint8_t *content, size_t length)
{
    size_t at = 0;
    uint32_t key = tag << 3 | 2;
    for (; key >= 0x80; key >>= 7)
        bytes[at++] = (uint8_t)(key | 0x80);
    bytes[at++] = (uint8_t)key;
    bytes[at++] = (uint8_t)length;
    if (length)
        memcpy(bytes + at, content, length);
    return at + length;
}

static void a_request_comes_out_as_it_went_in(void **state)
{
    (void)state;
    uint8_t bytes[256] = {0};
    int32_t pages[] = {3, 1, INT32_MAX};
    Attnd__PagesFree free_pages = ATTND__PAGES_FREE__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT, *got;
    free_pages.pool = 7;
    free_pages.page = pages;
    free_pages.n_page = 3;
    request.id = UINT64_MAX;
    request.call_case = ATTND__REQUEST__CALL_PAGES_FREE;
    request.pages_free = &free_pages;
    assert_int_equal(decode(bytes, pack(&request, bytes), &got), 0);
    assert_true(got->id == UINT64_MAX);
    assert_int_equal(got->call_case, ATTND__REQUEST__CALL_PAGES_FREE);
    assert_int_equal(got->pages_free->pool, 7);
    assert_int_equal(got->pages_free->n_page, 3);
    assert_memory_equal(got->pages_free->page, pages, sizeof(pages));
}

static void the_largest_honest_requests_fit(void **state)
{
    (void)state;
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    static int32_t pages[16384];
    static Attnd__Plane plane = ATTND__PLANE__INIT, *planes[1024];
    Attnd__PagesFree free_pages = ATTND__PAGES_FREE__INIT;
    Attnd__PoolCreate pool = ATTND__POOL_CREATE__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT, *got;
    for (size_t i = 0; i < 16384; i++)
        pages[i] = 1 << 24;
    free_pages.page = pages;
    free_pages.n_page = 16384;
    request.call_case = ATTND__REQUEST__CALL_PAGES_FREE;
    request.pages_free = &free_pages;
    assert_int_equal(decode(bytes, pack(&request, bytes), &got), 0);

    plane.memory = 1024;
    plane.offset_bytes = (uint64_t)1 << 40;
    plane.stride_page = plane.stride_token = plane.stride_head = (int64_t)1 << 38;
    for (size_t i = 0; i < 1024; i++)
        planes[i] = &plane;
    pool.page_owner = ATTND__PAGE_OWNER__OWNER_SERVICE;
    pool.n_k = pool.n_v = 1024;
    pool.k = pool.v = planes;
    request.call_case = ATTND__REQUEST__CALL_POOL_CREATE;
    request.pool_create = &pool;
    assert_int_equal(decode(bytes, pack(&request, bytes), &got), 0);
    assert_int_equal(got->pool_create->n_v, 1024);
}

static void an_unknown_field_is_refused_by_its_id(void **state)
{
    (void)state;
    /* id 5; pages_alloc { pool 1, count 2, field 9 = 1 } */
    const uint8_t bytes[] = {0x08, 5, 0x52, 6, 0x08, 1, 0x10, 2, 0x48, 1};
    Attnd__Request *got;
    assert_int_equal(decode(bytes, sizeof(bytes), &got), -ATTND_E_UNSUPPORTED);
    assert_non_null(got);
    assert_int_equal(got->id, 5);
}

static void hello_and_status_tolerate_what_is_newer(void **state)
{
    (void)state;
    /* id 1; hello { version 1, field 15 = 1 }, and field 100 beside it */
    const uint8_t hello[] = {0x08, 1, 0x12, 4, 0x08, 1, 0x78, 1, 0xa0, 0x06, 1};
    /* id 1; status { field 1 = 1 } */
    const uint8_t status[] = {0x08, 1, 0x8a, 0x01, 2, 0x08, 1};
    Attnd__Request *got;
    assert_int_equal(decode(hello, sizeof(hello), &got), 0);
    assert_int_equal(got->call_case, ATTND__REQUEST__CALL_HELLO);
    assert_int_equal(decode(status, sizeof(status), &got), 0);
    assert_int_equal(got->call_case, ATTND__REQUEST__CALL_STATUS);
}

static void a_call_this_version_does_not_have_is_refused_by_its_id(void **state)
{
    (void)state;
    const uint8_t bytes[] = {0x08, 9, 0xa2, 0x06, 0}; /* id 9; field 100, empty */
    Attnd__Request *got;
    assert_int_equal(decode(bytes, sizeof(bytes), &got), -ATTND_E_UNSUPPORTED);
    assert_int_equal(got->id, 9);
}

static void what_is_no_request_is_refused(void **state)
{
    (void)state;
    const uint8_t no_id[] = {0x12, 2, 0x08, 1};
    const uint8_t cut[] = {0x08, 1, 0x12, 9, 0x08, 1};
    const uint8_t hello_without_version[] = {0x08, 1, 0x12, 0};
    Attnd__Request *got;
    assert_int_equal(decode(no_id, sizeof(no_id), &got), -ATTND_E_PROTOCOL);
    assert_null(got);
    assert_int_equal(decode(cut, sizeof(cut), &got), -ATTND_E_PROTOCOL);
    assert_int_equal(decode(hello_without_version, sizeof(hello_without_version), &got),
                     -ATTND_E_PROTOCOL);
    assert_int_equal(decode(no_id, 0, &got), -ATTND_E_PROTOCOL);
}

/* Each plane costs twelve bytes on the wire and several times that unpacked. */
static size_t pack_planes(uint8_t *bytes, uint32_t count)
{
    const uint8_t plane[] = {0x08, 1, 0x10, 0, 0x18, 0, 0x20, 0, 0x28, 0};
    const uint8_t scalars[] = {0x08, 1, 0x10, 1, 0x18, 1, 0x20, 1,
                               0x28, 1, 0x30, 1, 0x38, 1, 0x40, 1};
    size_t content_bytes = sizeof(scalars) + count * (sizeof(plane) + 2), at = 0;
    bytes[at++] = 0x08;
    bytes[at++] = 1;
    bytes[at++] = 6 << 3 | 2; /* pool_create, its length in four bytes */
    for (uint32_t shift = 0; shift < 21; shift += 7)
        bytes[at++] = (uint8_t)(content_bytes >> shift | 0x80);
    bytes[at++] = (uint8_t)(content_bytes >> 21);
    memcpy(bytes + at, scalars, sizeof(scalars));
    at += sizeof(scalars);
    for (uint32_t i = 0; i < count; i++)
        at += put_field(bytes + at, 9, plane, sizeof(plane));
    return at;
}

static void what_unpacks_to_too_much_is_refused(void **state)
{
    (void)state;
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    Attnd__Request *got;
    assert_int_equal(decode(bytes, pack_planes(bytes, 1000), &got), 0);
    assert_int_equal(got->pool_create->n_k, 1000);
    size_t size_bytes = pack_planes(bytes, 10900);
    assert_true(size_bytes <= sizeof(bytes));
    assert_int_equal(decode(bytes, size_bytes, &got), -ATTND_E_PROTOCOL);
    assert_null(got);
}

static void random_bytes_never_do_harm(void **state)
{
    (void)state;
    struct prng prng = prng_fork(test_seed(), 0);
    uint8_t bytes[512] = {0};
    Attnd__Hello hello = ATTND__HELLO__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT, *got;
    hello.version = 1;
    hello.name = (char *)(uintptr_t) "engine";
    request.call_case = ATTND__REQUEST__CALL_HELLO;
    request.hello = &hello;
    for (uint32_t i = 0; i < 50000; i++) {
        size_t size_bytes = prng_below(&prng, sizeof(bytes));
        if (i % 2) {
            size_bytes = pack(&request, bytes);
            for (uint32_t flips = 1 + prng_below(&prng, 4); flips > 0; flips--)
                bytes[prng_below(&prng, (uint32_t)size_bytes)] = (uint8_t)prng_next(&prng);
        } else {
            for (size_t b = 0; b < size_bytes; b++)
                bytes[b] = (uint8_t)prng_next(&prng);
        }
        int rc = decode(bytes, size_bytes, &got);
        assert_true(rc == 0 || rc == -ATTND_E_UNSUPPORTED || rc == -ATTND_E_PROTOCOL);
        assert_int_equal(got == NULL, rc == -ATTND_E_PROTOCOL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_comes_out_as_it_went_in),
        cmocka_unit_test(the_largest_honest_requests_fit),
        cmocka_unit_test(an_unknown_field_is_refused_by_its_id),
        cmocka_unit_test(hello_and_status_tolerate_what_is_newer),
        cmocka_unit_test(a_call_this_version_does_not_have_is_refused_by_its_id),
        cmocka_unit_test(what_is_no_request_is_refused),
        cmocka_unit_test(what_unpacks_to_too_much_is_refused),
        cmocka_unit_test(random_bytes_never_do_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
