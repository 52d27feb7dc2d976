/* test_planner_threads.c - jobs on the planner's thread, and what the loop makes of them. */
#include "service/sched/planner.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/quiet_loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#define JOBS 40u

struct job {
    struct attnd_planner_job planner;
    struct scene *scene;
    uint32_t number, worked, done, skipped;
};

struct scene {
    struct attnd_loop *loop;
    struct attnd_planner *planner;
    struct job job[JOBS];
    uint64_t last[2]; /* of two sessions */
    uint32_t order[JOBS], order_count;
    uint32_t done, idle, wanted;
    long work_ns;
};

static struct scene scene;

static void work(struct attnd_planner_job *planner)
{
    struct job *job = (struct job *)planner;
    const struct timespec time = {.tv_nsec = job->scene->work_ns};
    (void)nanosleep(&time, NULL);
    job->worked++;
    job->scene->order[job->scene->order_count++] = job->number; /* the thread is one */
}

static void done(struct attnd_planner_job *planner, int worked)
{
    struct job *job = (struct job *)planner;
    job->done++;
    job->skipped += !worked;
    job->scene->done++;
}

static void idle(void *context)
{
    struct scene *own = context;
    own->idle++;
    if (own->done == own->wanted)
        attnd_loop_stop(own->loop);
}

static int setup(void **state)
{
    (void)state;
    scene = (struct scene){0};
    CHECK_EQUAL(quiet_loop_new(ATTND_LOOP_EPOLL, &scene.loop), 0);
    CHECK_EQUAL(attnd_planner_new(scene.loop, idle, &scene, &scene.planner), 0);
    for (uint32_t i = 0; i < JOBS; i++)
        scene.job[i] = (struct job){.scene = &scene, .number = i};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    attnd_planner_free(scene.planner);
    attnd_loop_free(scene.loop);
    return 0;
}

static void submit(uint32_t number, uint32_t session)
{
    scene.job[number].planner =
        (struct attnd_planner_job){.last = &scene.last[session], .work = work, .done = done};
    attnd_planner_submit(scene.planner, &scene.job[number].planner);
}

static void run_until(uint32_t wanted)
{
    struct attnd_fault fault = {0};
    scene.wanted = wanted;
    CHECK_EQUAL(attnd_loop_run(scene.loop, &fault), 0);
}

static void every_job_is_worked_once_and_done_with_on_the_loop(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < JOBS; i++)
        submit(i, 0);
    run_until(JOBS);
    for (uint32_t i = 0; i < JOBS; i++) {
        CHECK_EQUAL(scene.job[i].worked, 1);
        CHECK_EQUAL(scene.job[i].done, 1);
        CHECK_EQUAL(scene.job[i].skipped, 0);
        CHECK_EQUAL(scene.order[i], i); /* of one session in order */
    }
    CHECK(scene.idle >= 1 && scene.idle <= JOBS);
}

/* One session has thirty jobs in line before the other comes with three. */
static void sessions_have_their_turns(void **state)
{
    uint32_t last = 0;
    (void)state;
    scene.work_ns = 5000000;
    for (uint32_t i = 0; i < 30; i++)
        submit(i, 0);
    for (uint32_t i = 30; i < 33; i++)
        submit(i, 1);
    run_until(33);
    for (uint32_t i = 0; i < 33; i++)
        last = scene.order[i] == 32 ? i : last;
    CHECK(last < 10); /* the job under way, then every other one; slack for a slow start */
}

static void what_is_not_begun_at_the_end_is_done_with_as_it_is(void **state)
{
    uint32_t worked = 0, skipped = 0;
    (void)state;
    scene.work_ns = 2000000;
    for (uint32_t i = 0; i < JOBS; i++)
        submit(i, i % 2);
    attnd_planner_free(scene.planner);
    scene.planner = NULL;
    for (uint32_t i = 0; i < JOBS; i++) {
        CHECK_EQUAL(scene.job[i].done, 1);
        CHECK_EQUAL(scene.job[i].worked + scene.job[i].skipped, 1);
        worked += scene.job[i].worked;
        skipped += scene.job[i].skipped;
    }
    CHECK_EQUAL(worked + skipped, JOBS);
    CHECK(skipped > 0);
}

static void an_end_without_jobs_is_quiet(void **state)
{
    (void)state;
    attnd_planner_free(scene.planner);
    attnd_planner_free(NULL);
    scene.planner = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(every_job_is_worked_once_and_done_with_on_the_loop),
        TEST(sessions_have_their_turns),
        TEST(what_is_not_begun_at_the_end_is_done_with_as_it_is),
        TEST(an_end_without_jobs_is_quiet),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
