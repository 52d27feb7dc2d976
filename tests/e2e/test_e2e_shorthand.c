/*
 * test_e2e_shorthand.c - the short ways: a pool by one call, a run that is waited for.
 */
#include "client/attnd.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { ROWS = 2, HEADS = 8, HEADS_KV = 2, DIM = 64, O = 4096, LSE = 8192 };

struct scene {
    struct attnd_session *session;
    uint32_t pool, memory, plan;
    int32_t page;
    float *lse;
};

static void open_scene(struct scene *scene, const struct harness *harness)
{
    void *at;

    scene->session = e2e_open(harness);
    CHECK_OK(attnd_pool_create_leased(scene->session, 1, 4, 16, HEADS_KV, DIM, ATTND_DTYPE_BF16,
                                      &scene->pool));
    CHECK_OK(attnd_memory_create(scene->session, LSE + ROWS * HEADS * 4, &scene->memory, &at));
    CHECK_OK(attnd_pages_alloc(scene->session, scene->pool, 1, &scene->page));
    CHECK_OK(attnd_plan_create(
        scene->session, &ATTND_ARGS(plan_args, scene->pool, 1, ROWS, 1, 1, HEADS), &scene->plan));
    scene->lse = (float *)((char *)at + LSE);
}

/* Silent if it succeeds. */
static void set(const struct scene *scene, int32_t page)
{
    const int32_t rows[] = {0, ROWS}, pages[] = {0, 1}, last_page_len = ROWS;
    const struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

    CHECK_OK(attnd_plan_set(scene->session, scene->plan,
                            &ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level), &quiet));
}

static int run(const struct scene *scene)
{
    return attnd_run_sync(
        scene->session, scene->plan,
        &ATTND_ARGS(run_args, 0, {scene->memory, 0}, {scene->memory, O}, {scene->memory, LSE}));
}

static void the_usual_pool_is_leased_host_memory(void **state)
{
    struct scene scene;
    struct attnd_pool_info info = {.size = sizeof(info)};

    open_scene(&scene, *state);
    CHECK_OK(attnd_pool_info(scene.session, scene.pool, &info));
    CHECK_EQUAL(info.desc.page_owner, ATTND_PAGES_OF_SERVICE);
    CHECK_EQUAL(info.desc.dtype, ATTND_DTYPE_BF16);
    CHECK_EQUAL(info.desc.dim_vo, DIM);
    CHECK(info.address != NULL);
    attnd_close(scene.session);
}

static void a_run_that_is_waited_for_is_there(void **state)
{
    struct scene scene;

    open_scene(&scene, *state);
    set(&scene, scene.page);
    scene.lse[(ROWS - 1) * HEADS] = -1.0f;
    CHECK_OK(run(&scene));
    CHECK(scene.lse[(ROWS - 1) * HEADS] == 1.0f); /* zero q and k: two keys weigh the same */
    attnd_close(scene.session);
}

static void the_first_failure_in_front_of_it_is_the_one_it_returns(void **state)
{
    struct scene scene;
    struct attnd_fault fault;

    open_scene(&scene, *state);
    set(&scene, 77);
    CHECK_EQUAL(run(&scene), -ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_KV_INDICES);
    CHECK_EQUAL(fault.value, 77);
    set(&scene, scene.page);
    CHECK_OK(run(&scene)); /* nothing of the failure is left */
    attnd_close(scene.session);
}

static void without_a_plan_it_fails_by_itself(void **state)
{
    struct scene scene;

    open_scene(&scene, *state);
    CHECK_EQUAL(run(&scene), -ATTND_E_INVALID);
    attnd_close(scene.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(the_usual_pool_is_leased_host_memory),
        E2E_TEST(a_run_that_is_waited_for_is_there),
        E2E_TEST(the_first_failure_in_front_of_it_is_the_one_it_returns),
        E2E_TEST(without_a_plan_it_fails_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
