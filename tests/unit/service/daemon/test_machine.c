/* test_machine.c - the memory there is to give out: the control groups' limits, both versions. */
#include "service/daemon/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NO_LIMIT UINT64_MAX

static char root[32];

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* @path: of a file below the root; its folders are made. */
static void put(const char *path, const char *text)
{
    char whole[256];
    assert_true(snprintf(whole, sizeof(whole), "%s/%s", root, path) < (int)sizeof(whole));
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        (void)mkdir(whole, 0700);
        *slash = '/';
    }
    write_file(whole, text);
}

/* What a process whose groups are @groups may use. */
static uint64_t limit_of(const char *groups)
{
    char path[64];
    assert_true(snprintf(path, sizeof(path), "%s/cgroup", root) < (int)sizeof(path));
    write_file(path, groups);
    return attnd_machine_group_bytes(path, root);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/attnd-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void a_group_is_bound_by_those_above_it(void **state)
{
    (void)state;
    put("a/memory.max", "4096\n");
    put("a/b/memory.max", "8192\n");
    put("a/c/memory.max", "1024\n");
    assert_int_equal(limit_of("0::/a/b\n"), 4096);
    assert_int_equal(limit_of("0::/a/c\n"), 1024);
    assert_int_equal(limit_of("0::/a\n"), 4096);
}

static void a_container_finds_its_limit_at_the_root(void **state)
{
    (void)state;
    put("memory.max", "65536\n");
    assert_int_equal(limit_of("0::/\n"), 65536);
    assert_int_equal(limit_of("0::/not/visible/from/here\n"), 65536);
}

static void version_1_names_its_memory_controller(void **state)
{
    (void)state;
    put("memory/x/memory.limit_in_bytes", "2048\n");
    put("cpu/x/memory.limit_in_bytes", "1\n");
    put("memory/x/memory.max", "1\n");
    assert_int_equal(limit_of("5:cpu:/x\n4:memory:/x\n0::/\n"), 2048);
}

static void what_says_nothing_is_no_limit(void **state)
{
    (void)state;
    put("a/memory.max", "max\n");
    assert_int_equal(limit_of("0::/a\n"), NO_LIMIT);
    assert_int_equal(limit_of("0::/elsewhere\n"), NO_LIMIT);
    assert_int_equal(limit_of("\n:\nnonsense\n4:memory\n"), NO_LIMIT);
    assert_int_equal(limit_of(""), NO_LIMIT);
    assert_int_equal(attnd_machine_group_bytes("/nowhere", root), NO_LIMIT);
}

static void this_machine_has_memory(void **state)
{
    (void)state;
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE);
    assert_true(attnd_machine_memory_bytes() > 0);
    assert_true(attnd_machine_memory_bytes() <= pages * page);
}

/* All that may be used at once, in a group of that size. */
static uint64_t sum_bytes(uint64_t machine_bytes, uint64_t own_bytes, uint64_t cache_bytes)
{
    const struct attnd_budgets budgets =
        attnd_machine_budgets(machine_bytes, own_bytes, cache_bytes);
    assert_true(budgets.session_bytes < budgets.host_bytes);
    return own_bytes + cache_bytes + budgets.host_bytes + budgets.daemon_bytes;
}

static void budgets_of_a_small_group_fit_into_it(void **state)
{
    const uint64_t mib = 1u << 20;
    (void)state;
    assert_true(sum_bytes(1024 * mib, 512 * mib, 0) < 1024 * mib);
    assert_true(sum_bytes(4096 * mib, 512 * mib, 0) < 4096 * mib);
    assert_true(sum_bytes(4096 * mib, 512 * mib, 1024 * mib) < 4096 * mib);
    assert_true(sum_bytes(1048576 * mib, 512 * mib, 0) > 1048576 * mib / 4 * 3); /* most of it */
    /* Where not even heap and scratch fit there is something to begin with. */
    assert_true(attnd_machine_budgets(512 * mib, 512 * mib, 0).host_bytes > 64 * mib);
    assert_int_equal(attnd_machine_budgets(512 * mib, 512 * mib, 1024 * mib).host_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_group_is_bound_by_those_above_it),
        TEST(a_container_finds_its_limit_at_the_root),
        TEST(version_1_names_its_memory_controller),
        TEST(what_says_nothing_is_no_limit),
        TEST(this_machine_has_memory),
        TEST(budgets_of_a_small_group_fit_into_it),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
