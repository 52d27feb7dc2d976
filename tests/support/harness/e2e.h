/*
 * e2e.h - what end-to-end tests begin with: a service for each test, and a batch to vary.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_E2E_H
#define ATTND_TESTS_SUPPORT_HARNESS_E2E_H

#include "tests/support/harness/harness.h"
#include "tests/support/random/random_batch.h"

/** e2e_start()/e2e_stop() - setup and teardown: *state is a struct harness of a running service. */
int e2e_start(void **state);
int e2e_stop(void **state);

/** e2e_start_trusting() - the same with --trust. */
int e2e_start_trusting(void **state);

#define E2E_TEST(name) cmocka_unit_test_setup_teardown(name, e2e_start, e2e_stop)
#define E2E_TRUST_TEST(name) cmocka_unit_test_setup_teardown(name, e2e_start_trusting, e2e_stop)

/** E2E_OWN_TEST() - a test that starts its services itself, in a static struct harness. */
#define E2E_OWN_TEST(name) cmocka_unit_test_teardown(name, harness_end_all)

/** e2e_open() - a session with the default options; must come about. */
struct attnd_session *e2e_open(const struct harness *harness);

/** e2e_on_gpu() - the worker is the CUDA one: $ATTND_TEST_BACKEND says so. */
int e2e_on_gpu(void);

/**
 * e2e_hold_worker() - stop the worker's process: what is submitted from here on is in flight until
 * e2e_let_go(), or until it is killed. No longer than the watchdog waits (3 s). A GPU's kernels do
 * not stop with their process: there it does nothing, and a long batch has to do.
 * Return: its pid.
 */
pid_t e2e_hold_worker(const struct harness *harness);
void e2e_let_go(pid_t worker);

/** e2e_batch() - prefills, decodes and an empty request, fp16, two layers, LSE, causal. */
struct random_batch e2e_batch(void);

/** e2e_decoding_batch() - its requests, each of one row, four tokens long: planned once, advanced.
 */
struct random_batch e2e_decoding_batch(void);

/** e2e_long_batch() - one whose run keeps the worker busy for a long time (some 100 ms): something
 * to be interrupted. Not to be verified. */
struct random_batch e2e_long_batch(void);

#endif
