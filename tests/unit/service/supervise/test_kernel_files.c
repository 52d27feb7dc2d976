/*
 * test_kernel_files.c - where the files of kernels are looked for: beside the worker program,
 * however that is found, and where they are installed.
 */
#include "schemas/kernels.h"
#include "service/supervise/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64], worker[128];
static struct attnd_fault fault;

/* In the folder of this test. */
static const char *at(const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", root, name);
    return path[turn];
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(at(name), 0700), 0);
}

/* A program in bin/, as installed. */
static int setup(void **state)
{
    static const char *const folders[] = {"bin",       "bin/kernels",       "lib",
                                          "lib/attnd", "lib/attnd/kernels", "bin/kernels/portable"};
    (void)state;
    snprintf(root, sizeof(root), "/tmp/attnd-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        assert_int_equal(mkdir(at(folders[i]), 0700), 0);
    put("bin/attnd-worker", "");
    snprintf(worker, sizeof(worker), "%s/bin/attnd-worker", root);
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"bin/kernels/portable/engine.fatbin",
                                        "bin/kernels/portable",
                                        "bin/kernels/engine.fatbin",
                                        "bin/kernels/64_bf16_varied.fatbin",
                                        "bin/kernels/192_bf16_varied.fatbin",
                                        "lib/attnd/kernels/engine.fatbin",
                                        "bin/attnd-worker",
                                        "bin/kernels",
                                        "bin",
                                        "lib/attnd/kernels",
                                        "lib/attnd",
                                        "lib"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)remove(at(names[i]));
    return rmdir(root);
}

/* The worker's. */
static const char *isa = "sm_90a";

/* What the file says; NULL: there is none, and the fault is checked. */
static const char *text_of(const struct attnd_options *options, uint32_t kernel)
{
    static char text[32];
    uint64_t bytes;
    int fd;
    const int rc = attnd_kernel_file_open(options, isa, kernel, &fd, &bytes, &fault);
    if (rc < 0) {
        assert_int_equal(rc, -ATTND_E_UNSUPPORTED);
        assert_int_equal(fault.field, ATTND_F_BACKEND);
        assert_int_equal(fault.value, kernel);
        return NULL;
    }
    memset(text, 0, sizeof(text));
    assert_int_equal(read(fd, text, sizeof(text) - 1), bytes);
    close(fd);
    return text;
}

static void they_lie_beside_the_worker_that_was_named(void **state)
{
    const struct attnd_options options = {.worker_path = worker};
    (void)state;
    assert_int_equal(attnd_kernel_files_are_there(&options, isa), 0);
    assert_null(text_of(&options, ATTND_KERNELS));
    put("bin/kernels/engine.fatbin", "beside");
    put("lib/attnd/kernels/engine.fatbin", "installed");
    assert_int_equal(attnd_kernel_files_are_there(&options, isa), 1);
    assert_string_equal(text_of(&options, ATTND_KERNELS), "beside");
}

static void or_where_they_are_installed(void **state)
{
    const struct attnd_options options = {.worker_path = worker};
    (void)state;
    put("lib/attnd/kernels/engine.fatbin", "installed");
    assert_string_equal(text_of(&options, ATTND_KERNELS), "installed");
}

static void a_worker_that_path_finds_has_them_beside_it(void **state)
{
    const struct attnd_options options = {.worker_path = "attnd-worker"};
    const char *before = getenv("PATH");
    char path[1024];
    (void)state;
    put("bin/kernels/engine.fatbin", "beside");
    snprintf(path, sizeof(path), "/nonexistent:%s:%s", at("bin"), before ? before : "");
    assert_int_equal(setenv("PATH", path, 1), 0);
    assert_string_equal(text_of(&options, ATTND_KERNELS), "beside");
    assert_int_equal(setenv("PATH", "/nonexistent:/neither", 1), 0);
    assert_null(text_of(&options, ATTND_KERNELS));
    assert_int_equal(setenv("PATH", before ? before : "", 1), 0);
}

static void a_worker_that_is_no_hopper_s_has_files_of_its_own(void **state)
{
    const struct attnd_options options = {.worker_path = worker};
    (void)state;
    put("bin/kernels/engine.fatbin", "of Hopper");
    isa = "sm_80";
    assert_int_equal(attnd_kernel_files_are_there(&options, isa), 0);
    put("bin/kernels/portable/engine.fatbin", "of all");
    assert_string_equal(text_of(&options, ATTND_KERNELS), "of all");
    isa = "sm_90a";
    assert_string_equal(text_of(&options, ATTND_KERNELS), "of Hopper");
}

static void the_varied_kernel_stands_in_for_the_plain_one_only(void **state)
{
    const struct attnd_options options = {.worker_path = worker};
    const uint32_t plain = attnd_kernel_number(64, ATTND_BF16, ATTND_KERNEL_PLAIN);
    (void)state;
    put("bin/kernels/64_bf16_varied.fatbin", "varied");
    assert_string_equal(text_of(&options, plain), "varied");
    assert_string_equal(text_of(&options, plain + ATTND_KERNELS_PLAIN), "varied");
    assert_null(text_of(&options, plain + 2 * ATTND_KERNELS_PLAIN));
    assert_null(text_of(&options, attnd_kernel_number(64, ATTND_FP16, ATTND_KERNEL_PLAIN)));
    put("bin/kernels/192_bf16_varied.fatbin", "192");
    assert_string_equal(text_of(&options, attnd_kernel_of(192, 128, ATTND_BF16, ATTND_BF16, 0)),
                        "192");
    assert_null(text_of(&options, attnd_kernel_of(192, 128, ATTND_FP16, ATTND_FP16, 0)));
}

static void what_is_empty_or_no_file_is_none(void **state)
{
    const struct attnd_options options = {.worker_path = worker};
    (void)state;
    put("bin/kernels/engine.fatbin", "");
    assert_int_equal(attnd_kernel_files_are_there(&options, isa), 0);
    assert_int_equal(remove(at("bin/kernels/engine.fatbin")), 0);
    assert_int_equal(mkfifo(at("bin/kernels/engine.fatbin"), 0700), 0); /* would wait for ever */
    assert_int_equal(attnd_kernel_files_are_there(&options, isa), 0);
}

static void a_number_that_no_kernel_has_is_refused(void **state)
{
    const struct attnd_options options = {.worker_path = worker};
    uint64_t bytes;
    int fd;
    (void)state;
    assert_int_equal(attnd_kernel_file_open(&options, isa, ATTND_KERNELS + 1, &fd, &bytes, &fault),
                     -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_KERNEL);
    assert_int_equal(fault.limit, ATTND_KERNELS);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(they_lie_beside_the_worker_that_was_named),
        CASE(or_where_they_are_installed),
        CASE(a_worker_that_path_finds_has_them_beside_it),
        CASE(a_worker_that_is_no_hopper_s_has_files_of_its_own),
        CASE(the_varied_kernel_stands_in_for_the_plain_one_only),
        CASE(what_is_empty_or_no_file_is_none),
        CASE(a_number_that_no_kernel_has_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
