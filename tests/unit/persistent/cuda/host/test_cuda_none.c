/* What a build without CUDA answers. The file under test is part of this program, so that the test
 * says the same where the library has the real backend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "persistent/cuda/host/cuda_none.c" /* NOLINT(bugprone-suspicious-include) */

static void a_build_without_cuda_says_unsupported(void **state)
{
    (void)state;
    struct attnd_queue_head head = {0};
    struct attnd_port port = {0};
    const struct attnd_backend_config config = {.queue = &head, .port = &port};
    struct attnd_backend *backend = (struct attnd_backend *)&head;
    struct attnd_fault fault = {0};
    assert_string_equal(attnd_backend_cuda.name, "cuda");
    assert_int_equal(attnd_backend_cuda.create(&config, &backend, &fault), -ATTND_E_UNSUPPORTED);
    assert_null(backend);
    assert_int_equal(fault.code, -ATTND_E_UNSUPPORTED);
    assert_int_equal(attnd_backend_cuda.create(&config, &backend, NULL), -ATTND_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_build_without_cuda_says_unsupported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
