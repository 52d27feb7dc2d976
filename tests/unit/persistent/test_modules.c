/* test_modules.c - a file that others could have written is not loaded. */
#include "persistent/modules.h"

#include "schemas/errors.h"
#include "schemas/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char top[PATH_MAX], path[PATH_MAX + 8], why[300];

static int begin(void **state)
{
    char temporary[PATH_MAX - 32];

    (void)state;
    snprintf(top, sizeof(top), "%s/modules.XXXXXX", realpath("/tmp", temporary));
    if (!mkdtemp(top))
        return -1;
    snprintf(path, sizeof(path), "%s/m", top);
    return mkdir(path, 0755);
}

static int end(void **state)
{
    char command[PATH_MAX + 16];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", top);
    return system(command);
}

static void put(const char *name, const char *text)
{
    char file[PATH_MAX + 64];

    snprintf(file, sizeof(file), "%s/%s", path, name);
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    assert_int_equal(chmod(file, 0644), 0);
}

static void expect_refused(const char *clause)
{
    assert_int_equal(attnd_modules_open(path, why, sizeof(why)), -1);
    if (!strstr(why, clause))
        fail_msg("'%s' does not say '%s'", why, clause);
}

static int open_directory(void)
{
    int directory = attnd_modules_open(path, why, sizeof(why));

    if (directory < 0)
        fail_msg("%s", why);
    return directory;
}

static void a_file_of_an_own_directory_is_read(void **state)
{
    void *bytes = NULL;

    (void)state;
    put("a", "kernel");
    int directory = open_directory();
    assert_int_equal(attnd_modules_read(directory, "a", &bytes, why, sizeof(why)), 1);
    assert_string_equal(bytes, "kernel");
    free(bytes);
    assert_int_equal(attnd_modules_read(directory, "b", &bytes, why, sizeof(why)), 0);
    close(directory);
}

static void a_directory_that_others_may_write_to_is_refused(void **state)
{
    (void)state;
    assert_int_equal(chmod(path, 0775), 0);
    expect_refused("may be written by others");
    assert_int_equal(chmod(path, 01777), 0); /* no owner's only: what is new is anybody's */
    expect_refused("may be written by others");
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(chmod(top, 0777), 0);
    expect_refused(top);
    assert_int_equal(chmod(top, 01777), 0); /* there only owners rename */
    close(open_directory());
}

static void a_link_and_a_relative_path_are_refused(void **state)
{
    char target[PATH_MAX + 16];

    (void)state;
    snprintf(target, sizeof(target), "%s/real", top);
    assert_int_equal(rename(path, target), 0);
    assert_int_equal(symlink(target, path), 0);
    expect_refused(path);
    assert_int_equal(attnd_modules_open("m", why, sizeof(why)), -1);
    assert_int_equal(attnd_modules_open("", why, sizeof(why)), -1);
    assert_int_equal(attnd_modules_open("/nowhere/at/all", why, sizeof(why)), -1);
    assert_string_equal(why, "/nowhere: No such file or directory");
}

static void a_file_that_others_may_write_to_or_that_is_none_is_refused(void **state)
{
    char file[PATH_MAX + 64];
    void *bytes = NULL;

    (void)state;
    put("a", "kernel");
    int directory = open_directory();
    snprintf(file, sizeof(file), "%s/a", path);
    assert_int_equal(chmod(file, 0664), 0);
    assert_int_equal(attnd_modules_read(directory, "a", &bytes, why, sizeof(why)), -1);
    assert_string_equal(why, "a: may be written by others");
    assert_int_equal(mkdirat(directory, "d", 0755), 0);
    assert_int_equal(attnd_modules_read(directory, "d", &bytes, why, sizeof(why)), -1);
    assert_string_equal(why, "d: is no file");
    assert_int_equal(mkfifoat(directory, "f", 0644), 0);
    assert_int_equal(attnd_modules_read(directory, "f", &bytes, why, sizeof(why)), -1);
    assert_int_equal(symlinkat("a", directory, "l"), 0);
    assert_int_equal(attnd_modules_read(directory, "l", &bytes, why, sizeof(why)), -1);
    close(directory);
}

static void what_another_user_owns_is_refused(void **state)
{
    char file[PATH_MAX + 64];
    void *bytes = NULL;

    (void)state;
    if (geteuid() != 0)
        skip(); /* nobody else can give files away */
    put("a", "kernel");
    snprintf(file, sizeof(file), "%s/a", path);
    int directory = open_directory();
    assert_int_equal(chown(file, 65534, 0), 0);
    assert_int_equal(attnd_modules_read(directory, "a", &bytes, why, sizeof(why)), -1);
    assert_string_equal(why, "a: belongs to another user");
    close(directory);
    assert_int_equal(chown(path, 65534, 0), 0);
    expect_refused("belongs to another user");
}

/* ---- names ---- */

static void a_kernel_has_the_name_that_makes_it(void **state)
{
    const struct attnd_fault fault = {-ATTND_E_UNSUPPORTED, ATTND_F_KERNEL, 0, 10, 0};
    char text[200], name[ATTND_KERNEL_NAME_BYTES];

    (void)state;
    assert_int_equal(attnd_kernel_of(128, 128, ATTND_FP16, ATTND_FP16, 0), 2);
    assert_string_equal(attnd_kernel_name(2, name), "128_fp16_plain");
    assert_int_equal(attnd_kernel_of(128, 128, ATTND_FP16, ATTND_FP16, ATTND_OPTION_WINDOW), 10);
    assert_int_equal(attnd_kernel_of(128, 128, ATTND_FP16, ATTND_FP16, ATTND_OPTION_FIXED_SPLIT),
                     10);
    assert_string_equal(
        attnd_kernel_name(attnd_kernel_of(80, 80, ATTND_BF16, ATTND_FP8_E4M3, 0), name),
        "128_bf16_fp8");
    assert_string_equal(
        attnd_kernel_name(attnd_kernel_of(576, 512, ATTND_BF16, ATTND_BF16, 0), name),
        "576_bf16_varied");
    assert_int_equal(attnd_kernel_of(100, 100, ATTND_FP16, ATTND_FP16, 0), ATTND_KERNELS);
    assert_int_equal(attnd_kernel_of(128, 64, ATTND_FP16, ATTND_FP16, 0), ATTND_KERNELS);
    assert_string_equal(attnd_fault_string(&fault, text, sizeof(text)),
                        "ATTND_E_UNSUPPORTED: this worker was built without kernel "
                        "128_fp16_varied; `attnd-variant 128_fp16_varied` makes it for attnd "
                        "--modules");
}

static void keys_of_192_dims_with_values_of_128_have_kernels_of_their_own(void **state)
{
    char name[ATTND_KERNEL_NAME_BYTES];

    (void)state;
    for (uint32_t options = 0; options < 2; options++)
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++) {
            const uint32_t kernel =
                attnd_kernel_of(192, 128, dtype, dtype, options ? ATTND_OPTION_WINDOW : 0);
            char expected[ATTND_KERNEL_NAME_BYTES];
            snprintf(expected, sizeof(expected), "192_%s_%s", dtype == ATTND_FP16 ? "fp16" : "bf16",
                     options ? "varied" : "plain");
            assert_string_equal(attnd_kernel_name(kernel, name), expected);
        }
    assert_string_equal(
        attnd_kernel_name(attnd_kernel_of(192, 128, ATTND_BF16, ATTND_FP8_E4M3, 0), name),
        "256_bf16_fp8");
    assert_string_equal(
        attnd_kernel_name(attnd_kernel_of(192, 192, ATTND_FP16, ATTND_FP16, 0), name),
        "256_fp16_varied");
    assert_int_equal(attnd_kernel_of(128, 192, ATTND_FP16, ATTND_FP16, 0), ATTND_KERNELS);
    assert_int_equal(attnd_kernel_number(192, ATTND_FP16, ATTND_KERNEL_FP8), ATTND_KERNELS);
}

static void every_kernel_has_a_name_and_a_number_of_its_own(void **state)
{
    static const char *const policies[] = {"plain", "varied", "fp8"};
    static const uint32_t dims[] = {64, 128, 192, 256, 576};
    uint32_t seen = 0;

    (void)state;
    for (uint32_t d = 0; d < 5; d++)
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++)
            for (uint32_t policy = 0; policy < 3; policy++) {
                const uint32_t kernel = attnd_kernel_number(dims[d], dtype, policy);
                char name[ATTND_KERNEL_NAME_BYTES], expected[64];
                if (dims[d] == 192 && policy == ATTND_KERNEL_FP8)
                    continue;
                assert_in_range(kernel, 0, ATTND_KERNELS - 1);
                assert_int_equal(seen >> kernel & 1, 0);
                seen |= 1u << kernel;
                snprintf(expected, sizeof(expected), "%u_%s_%s", dims[d],
                         dtype == ATTND_FP16 ? "fp16" : "bf16", policies[policy]);
                assert_string_equal(attnd_kernel_name(kernel, name), expected);
            }
    assert_int_equal(seen, (1u << ATTND_KERNELS) - 1);
}

static void no_kernel_has_chunks_or_slopes_of_the_caller(void **state)
{
    (void)state;
    assert_int_equal(attnd_kernel_of(128, 128, ATTND_FP16, ATTND_FP16, ATTND_OPTION_CHUNK),
                     ATTND_KERNELS);
    assert_int_equal(attnd_kernel_of(128, 128, ATTND_FP16, ATTND_FP16,
                                     ATTND_OPTION_ALIBI | ATTND_OPTION_ALIBI_SLOPES),
                     ATTND_KERNELS);
}

static void a_varied_kernel_executes_plain_runs_of_its_dims_and_no_others(void **state)
{
    static const uint32_t dims[] = {64, 128, 192, 256, 576};

    (void)state;
    for (uint32_t d = 0; d < 5; d++)
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++) {
            const uint32_t varied = attnd_kernel_number(dims[d], dtype, ATTND_KERNEL_VARIED);
            const uint32_t plain = attnd_kernel_number(dims[d], dtype, ATTND_KERNEL_PLAIN);
            const uint32_t fp8 = attnd_kernel_number(dims[d], dtype, ATTND_KERNEL_FP8);
            const uint32_t fp8_set = fp8 < ATTND_KERNELS ? 1u << fp8 : 0;
            assert_int_equal(attnd_kernels_executed(1u << varied), 1u << varied | 1u << plain);
            assert_int_equal(attnd_kernels_executed(1u << plain | fp8_set), 1u << plain | fp8_set);
            assert_int_equal(attnd_kernels_plain_of(1u << varied), 1u << plain);
            assert_int_equal(attnd_kernels_varied_of(1u << plain | fp8_set), 1u << varied);
            assert_int_equal(attnd_kernels_varied_of(1u << varied), 0);
            assert_int_equal(attnd_kernel_varied(plain), varied);
            assert_int_equal(attnd_kernel_varied(varied), ATTND_KERNELS);
            assert_int_equal(attnd_kernel_varied(fp8), ATTND_KERNELS);
        }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_of_an_own_directory_is_read),
        TEST(a_directory_that_others_may_write_to_is_refused),
        TEST(a_link_and_a_relative_path_are_refused),
        TEST(a_file_that_others_may_write_to_or_that_is_none_is_refused),
        TEST(what_another_user_owns_is_refused),
        cmocka_unit_test(a_kernel_has_the_name_that_makes_it),
        cmocka_unit_test(no_kernel_has_chunks_or_slopes_of_the_caller),
        cmocka_unit_test(keys_of_192_dims_with_values_of_128_have_kernels_of_their_own),
        cmocka_unit_test(every_kernel_has_a_name_and_a_number_of_its_own),
        cmocka_unit_test(a_varied_kernel_executes_plain_runs_of_its_dims_and_no_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
