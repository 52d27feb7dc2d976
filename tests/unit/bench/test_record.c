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

#define TEXT_OF(name, command)                                                                     \
    "\"name\": \"" name "\", \"unit\": \"\", \"better\": \"lower\", \"device\": \"\", \"cpu\": "   \
    "\"\", \"date\": \"\", \"commit\": \"\", \"command\": \"" command                              \
    "\", \"notes\": \"\", \"value\": 1, "
#define TEXTS(name) TEXT_OF(name, "bench/a --to ../b c/d")

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
        "{\"records\": [{" TEXT_OF("a", "bench/a --to /a/b") "\"dirty\": false}]}",
        "{\"records\": [{" TEXT_OF("a", "bench/a --to=/a/b") "\"dirty\": false}]}",
        "{\"records\": [{" TEXT_OF("a", "/a/bench/a") "\"dirty\": false}]}",
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

/* What is printed of the records of the folder has @texts in this order, and none of @absent. */
static void tables_are(const char *const *texts, size_t count, const char *const *absent,
                       size_t absent_count)
{
    char why[256] = "", *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    assert_int_equal(bench_table_print(out, directory, why, sizeof(why)), 0);
    assert_int_equal(fclose(out), 0);
    const char *at = text;
    for (size_t i = 0; i < count; i++) {
        at = strstr(at, texts[i]);
        if (!at)
            fail_msg("%s is not there, or not in its place: %s", texts[i], text);
    }
    for (size_t i = 0; i < absent_count; i++)
        if (strstr(text, absent[i]))
            fail_msg("%s is there: %s", absent[i], text);
    free(text);
}

static void write_records(struct bench_stamp *stamp, const char *device, const char *suite,
                          const struct bench_record *records, size_t count)
{
    char why[256] = "";

    snprintf(stamp->common.device, sizeof(stamp->common.device), "%s", device);
    if (bench_records_write(stamp, directory, suite, records, count, why, sizeof(why)) != 0)
        fail_msg("%s", why);
}

static void forget_records(const char *const *names, size_t count)
{
    char path[128];

    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        assert_int_equal(unlink(path), 0);
    }
}

static void each_machine_has_a_table(void **state)
{
    static const char *const devices[] = {"h100", "h200"}, *const written[] = {"gpu-h100.json",
                                                                               "gpu-h200.json"};
    struct bench_stamp stamp = make_stamp();
    char path[128];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bench_record records[2];

        snprintf(stamp.common.device, sizeof(stamp.common.device), "%s", devices[i]);
        records[0] = bench_record_make(&stamp, "gpu.a_us", 10 + i, "us", "lower", "a | b");
        records[1] = bench_record_make(&stamp, "gpu.b_us", 20 + i, "us", "lower", NULL);
        write_records(&stamp, devices[i], "gpu", records, 2);
    }
    snprintf(path, sizeof(path), "%s/suite-cpu.json", directory);
    unlink(path);
    static const char *const order[] = {
        "## h100 (", "| `gpu.a_us` | 10 |", "a \\| b",          "| `gpu.b_us` | 20",
        "## h200 (", "| `gpu.a_us` | 11",   "| `gpu.b_us` | 21"};
    tables_are(order, sizeof(order) / sizeof(order[0]), NULL, 0);
    forget_records(written, 2);
}

static void old_builds_and_values_below_zero_are_not_shown(void **state)
{
    static const char *const written[] = {"new-h100.json", "day-h100.json", "old-h100.json",
                                          "old-h200.json"};
    struct bench_stamp stamp = make_stamp();
    struct bench_record records[2];

    (void)state;
    static const struct {
        const char *suite, *device, *date;
    } files[] = {{"new", "h100", "2026-03-01T00:10:00Z"},
                 {"day", "h100", "2026-02-28T23:00:00Z"},
                 {"old", "h100", "2026-02-27T23:00:00Z"},
                 {"old", "h200", "2026-02-27T23:00:00Z"}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char name[32];
        snprintf(stamp.common.date, sizeof(stamp.common.date), "%s", files[i].date);
        snprintf(stamp.common.device, sizeof(stamp.common.device), "%s", files[i].device);
        snprintf(name, sizeof(name), "%s.%s_us", files[i].suite, files[i].device);
        records[0] = bench_record_make(&stamp, name, 1, "us", "lower", NULL);
        records[1] = bench_record_make(&stamp, "below_us", -1, "us", "lower", NULL);
        write_records(&stamp, files[i].device, files[i].suite, records, 2);
    }
    static const char *const shown[] = {"| `day.h100_us`", "| `new.h100_us`", "| `old.h200_us`"};
    static const char *const left_out[] = {"old.h100_us", "below_us"};
    tables_are(shown, 3, left_out, 2);
    forget_records(written, 4);
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

static void of_an_absolute_path_a_command_keeps_the_last_part(void **state)
{
    char *argv[] = {"/a/bench/gpu", "--record", "/b/c", "--to=/d/e", "../f", "g/h", NULL}, why[256];
    struct bench_stamp stamp;

    (void)state;
    setenv("ATTND_COMMIT", "0123456789abcdef0123456789abcdef01234567", 1);
    assert_int_equal(bench_stamp_take(&stamp, "h100", false, 6, argv, why, sizeof(why)), 0);
    assert_string_equal(stamp.common.command, "gpu --record c --to=e ../f g/h");
    unsetenv("ATTND_COMMIT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_reads_back_as_it_was_written),
        cmocka_unit_test(a_suite_is_replaced_whole),
        cmocka_unit_test(figures_of_uncommitted_changes_are_refused),
        cmocka_unit_test(what_was_packed_elsewhere_says_of_what_commit_it_is),
        cmocka_unit_test(of_an_absolute_path_a_command_keeps_the_last_part),
        cmocka_unit_test(a_file_that_is_not_exactly_records_is_refused),
        cmocka_unit_test(each_machine_has_a_table),
        cmocka_unit_test(old_builds_and_values_below_zero_are_not_shown),
        cmocka_unit_test(quantiles_are_within_a_bucket),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
