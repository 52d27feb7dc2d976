/* test_record.c - records survive being written and read, and nothing half-written or dirty gets
 * in; histograms. */
#include "bench/support/histogram.h"
#include "bench/support/record.h"
#include "bench/support/table.h"

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

static char directory[] = "/tmp/attnd-test-record-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    char path[128];

    (void)state;
    snprintf(path, sizeof(path), "%s/suite-cpu.json", directory);
    unlink(path);
    return rmdir(directory);
}

static struct bench_stamp make_stamp(void)
{
    struct bench_stamp stamp = {.common = {.device = "cpu",
                                           .cpu = "a \"quoted\" one\\two",
                                           .date = "2026-11-21T02:00:00Z",
                                           .commit = "0123456789abcdef0123456789abcdef01234567",
                                           .command = "bench/ring --spawn\t--rounds 5"}};
    return stamp;
}

static char *path_of(char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/suite-cpu.json", directory);
    return path;
}

static void a_record_reads_back_as_it_was_written(void **state)
{
    static struct bench_record read[BENCH_RECORDS_MAX];
    struct bench_stamp stamp = make_stamp();
    struct bench_record records[2];
    char why[256] = "", path[128];

    (void)state;
    records[0] = bench_record_make(&stamp, "suite.a_us", 1.25, "us", "lower", "note | pipe");
    records[1] = bench_record_make(&stamp, "suite.b", -3e-9, "ratio", "higher", NULL);
    assert_int_equal(bench_records_write(&stamp, directory, "suite", records, 2, why, sizeof(why)),
                     0);
    assert_int_equal(bench_records_read(path_of(path, sizeof(path)), read, why, sizeof(why)), 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(read[i].name, records[i].name);
        assert_true(read[i].value == records[i].value);
        assert_string_equal(read[i].unit, records[i].unit);
        assert_string_equal(read[i].better, records[i].better);
        assert_string_equal(read[i].device, "cpu");
        assert_string_equal(read[i].cpu, stamp.common.cpu);
        assert_string_equal(read[i].date, stamp.common.date);
        assert_string_equal(read[i].commit, stamp.common.commit);
        assert_string_equal(read[i].command, stamp.common.command);
        assert_string_equal(read[i].notes, records[i].notes);
        assert_false(read[i].dirty);
    }
}

static void a_suite_is_replaced_whole(void **state)
{
    static struct bench_record read[BENCH_RECORDS_MAX];
    struct bench_stamp stamp = make_stamp();
    struct bench_record record = bench_record_make(&stamp, "suite.c", 7, "x", "lower", "");
    char why[256] = "", path[128];

    (void)state;
    assert_int_equal(bench_records_write(&stamp, directory, "suite", &record, 1, why, sizeof(why)),
                     0);
    assert_int_equal(bench_records_read(path_of(path, sizeof(path)), read, why, sizeof(why)), 1);
    assert_string_equal(read[0].name, "suite.c");
}

static void figures_of_uncommitted_changes_are_refused(void **state)
{
    struct bench_stamp stamp = make_stamp();
    struct bench_record record;
    char why[256] = "", results[300];

    (void)state;
    stamp.common.dirty = true;
    record = bench_record_make(&stamp, "suite.d", 1, "x", "lower", "");
    assert_int_equal(bench_records_write(&stamp, directory, "suite", &record, 1, why, sizeof(why)),
                     -1);
    assert_true(why[0] != 0);
    stamp.allow_dirty = true;
    assert_int_equal(bench_records_write(&stamp, directory, "suite", &record, 1, why, sizeof(why)),
                     0);
    /* not in the folder that is under version control, whatever it is called on the way there */
    snprintf(stamp.root, sizeof(stamp.root), "%s", directory);
    snprintf(results, sizeof(results), "%s/bench", directory);
    assert_int_equal(mkdir(results, 0700), 0);
    snprintf(results, sizeof(results), "%s/bench/results", directory);
    assert_int_equal(mkdir(results, 0700), 0);
    snprintf(results, sizeof(results), "%s/bench/../bench/results/", directory);
    assert_int_equal(bench_records_write(&stamp, results, "suite", &record, 1, why, sizeof(why)),
                     -1);
    snprintf(results, sizeof(results), "%s/bench/results", directory);
    assert_int_equal(rmdir(results), 0); /* nothing was left in it */
    snprintf(results, sizeof(results), "%s/bench", directory);
    assert_int_equal(rmdir(results), 0);
}

#define TEXTS(name)                                                                                \
    "\"name\": \"" name "\", \"unit\": \"\", \"better\": \"lower\", \"device\": \"\", \"cpu\": "   \
    "\"\", \"date\": \"\", \"commit\": \"\", \"command\": \"\", \"notes\": \"\", \"value\": 1, "

static void a_file_that_is_not_exactly_records_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"records\": {}}",
        "{\"records\": []",
        "{\"records\": [{}]}",
        "{\"records\": [], \"more\": 1}",
        "{\"records\": [{" TEXTS("a") "\"dirty\": false, \"extra\": 1}]}",
        "{\"records\": [{" TEXTS("a") "\"dirty\": 0}]}",
        "{\"records\": [{" TEXTS("a") "\"dirty\": false, \"name\": \"b\"}]}",
        "{\"records\": [{" TEXTS("a") "\"dirty\": false}]} x",
    };
    static struct bench_record read[BENCH_RECORDS_MAX];
    char path[128], why[256];

    (void)state;
    path_of(path, sizeof(path));
    for (size_t i = 0; i <= sizeof(bad) / sizeof(bad[0]); i++) {
        bool good = i == sizeof(bad) / sizeof(bad[0]);
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        fputs(good ? "{\"records\": [{" TEXTS("a") "\"dirty\": false}]}" : bad[i], file);
        fclose(file);
        if (bench_records_read(path, read, why, sizeof(why)) != (good ? 1 : -1))
            fail_msg("case %zu: %s", i, good ? "refused" : bad[i]);
    }
}

/* Two machines, and a figure that only the second has. */
static void a_table_has_the_records_of_all_devices(void **state)
{
    static const char *const devices[] = {"h100", "h200"};
    struct bench_stamp stamp = make_stamp();
    char why[256] = "", path[128], *text = NULL;
    size_t bytes = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bench_record records[3];

        snprintf(stamp.common.device, sizeof(stamp.common.device), "%s", devices[i]);
        records[0] = bench_record_make(&stamp, "gpu.a_us", 10 + i, "us", "lower", "a | b");
        records[1] = bench_record_make(&stamp, "gpu.b_us", 20 + i, "us", "lower", NULL);
        records[2] = bench_record_make(&stamp, "gpu.a_over_peer", 0.5, "ratio", "lower", NULL);
        assert_int_equal(
            bench_records_write(&stamp, directory, "gpu", records, i ? 3 : 2, why, sizeof(why)), 0);
    }
    snprintf(path, sizeof(path), "%s/suite-cpu.json", directory);
    unlink(path);
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(bench_table_print(out, directory, why, sizeof(why)), 0);
    assert_int_equal(fclose(out), 0);
    static const char *const order[] = {"| `gpu.a_us` | 10 |", "| `gpu.a_us` | 11 |",
                                        "| `gpu.b_us` | 20 |", "| `gpu.b_us` | 21 |",
                                        "| `gpu.a_over_peer` | 0.5 |"};
    const char *at = text;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        at = strstr(at, order[i]);
        if (!at)
            fail_msg("%s is not there, or not in its place: %s", order[i], text);
    }
    assert_non_null(strstr(text, "a \\| b"));
    free(text);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/gpu-%s.json", directory, devices[i]);
        assert_int_equal(unlink(path), 0);
    }
}

static void quantiles_are_within_a_bucket(void **state)
{
    static struct bench_histogram histogram, other;

    (void)state;
    for (uint64_t i = 1; i <= 100000; i++)
        bench_histogram_add(i % 2 ? &histogram : &other, i);
    bench_histogram_merge(&histogram, &other);
    assert_int_equal(histogram.count, 100000);
    assert_int_equal(histogram.max, 100000);
    for (int percent = 1; percent < 100; percent++) {
        double exact = 1000.0 * percent;
        double got = (double)bench_histogram_quantile(&histogram, percent / 100.0);

        assert_true(got > exact * 0.97 && got < exact * 1.03);
    }
    assert_int_equal(bench_histogram_quantile(&histogram, 1), 100000);
    bench_histogram_add(&other, UINT64_MAX);
    assert_true(bench_histogram_quantile(&other, 1) <= UINT64_MAX);
}

static void what_was_packed_elsewhere_says_of_what_commit_it_is(void **state)
{
    static const char commit[] = "0123456789abcdef0123456789abcdef01234567";
    char *argv[] = {"bench/gpu", NULL}, packed[64], why[256];
    struct bench_stamp stamp;

    (void)state;
    setenv("ATTND_COMMIT", commit, 1);
    assert_int_equal(bench_stamp_take(&stamp, "h100", false, 1, argv, why, sizeof(why)), 0);
    assert_string_equal(stamp.common.commit, commit);
    assert_false(stamp.common.dirty);
    snprintf(packed, sizeof(packed), "%s+", commit);
    setenv("ATTND_COMMIT", packed, 1);
    assert_int_equal(bench_stamp_take(&stamp, "h100", false, 1, argv, why, sizeof(why)), -1);
    assert_int_equal(bench_stamp_take(&stamp, "h100", true, 1, argv, why, sizeof(why)), 0);
    assert_string_equal(stamp.common.commit, commit);
    assert_true(stamp.common.dirty);
    setenv("ATTND_COMMIT", "main", 1);
    assert_int_equal(bench_stamp_take(&stamp, "h100", true, 1, argv, why, sizeof(why)), -1);
    unsetenv("ATTND_COMMIT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_reads_back_as_it_was_written),
        cmocka_unit_test(a_suite_is_replaced_whole),
        cmocka_unit_test(figures_of_uncommitted_changes_are_refused),
        cmocka_unit_test(what_was_packed_elsewhere_says_of_what_commit_it_is),
        cmocka_unit_test(a_file_that_is_not_exactly_records_is_refused),
        cmocka_unit_test(a_table_has_the_records_of_all_devices),
        cmocka_unit_test(quantiles_are_within_a_bucket),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
