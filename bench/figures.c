/* figures.c - the records of bench/results as Markdown tables, on standard output or between
 * the markers of a text:
 *
 *   <!-- figures:begin -->
 *   <!-- figures:end -->
 *
 * A text whose tables are not these is an error under --check: figures in a text are copies, and
 * copies age. */
#include "bench/support/table.h"
#include "service/args/args.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES_MAX (4u << 20)
static const char begin_marker[] = "<!-- figures:begin -->\n",
                  end_marker[] = "<!-- figures:end -->";

struct options {
    const char *results, *check, *update;
};

static const struct argp_option option_list[] = {
    {"results", 'r', "DIR", 0, "Where the records are (default: bench/results)", 1},
    {"check", 'c', "FILE", 0, "Fail unless the tables between FILE's markers are these", 1},
    {"update", 'u', "FILE", 0, "Put the tables between FILE's markers", 1},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 'r':
        options->results = text;
        return 0;
    case 'c':
        options->check = text;
        return 0;
    case 'u':
        options->update = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "figures: %s: %s\n", what, why);
    return -1;
}

/* ---- the text ---- */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = file ? calloc(1, TEXT_BYTES_MAX + 1) : NULL;

    if (!text || (fread(text, 1, TEXT_BYTES_MAX, file) == 0 && ferror(file))) {
        fail(path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

/* The part between the markers. */
static int find_part(const char *path, char *text, char **begin, char **end)
{
    char *marker = strstr(text, begin_marker);

    *begin = marker ? marker + sizeof(begin_marker) - 1 : NULL;
    *end = *begin ? strstr(*begin, end_marker) : NULL;
    return *end ? 0 : fail(path, "the markers figures:begin and figures:end are not in it");
}

static int update(const char *path, const char *text, const char *begin, const char *end,
                  const char *table)
{
    char beside[PATH_MAX];
    FILE *file;
    int failed;

    snprintf(beside, sizeof(beside), "%s.new", path);
    file = fopen(beside, "we");
    if (!file)
        return fail(beside, strerror(errno));
    failed = fprintf(file, "%.*s%s%s", (int)(begin - text), text, table, end) < 0;
    failed |= fclose(file) != 0;
    if (failed || rename(beside, path)) {
        fail(path, strerror(errno));
        unlink(beside);
        return -1;
    }
    return 0;
}

static int apply(const struct options *options, const char *table)
{
    const char *path = options->check ? options->check : options->update;
    char *text = read_text(path), *begin, *end;
    int failed = text ? find_part(path, text, &begin, &end) : -1;

    if (!failed && options->update)
        failed = update(path, text, begin, end, table);
    else if (!failed &&
             ((size_t)(end - begin) != strlen(table) || memcmp(begin, table, strlen(table)) != 0))
        failed = fail(path, "its tables are not those of the records: make figures-update");
    free(text);
    return failed;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        option_list,     parse_option, NULL, "figures - the records of bench/results as tables",
        attnd_args_help, NULL,         NULL};
    struct options options = {.results = "bench/results"};
    char *table = NULL;
    size_t table_bytes = 0;
    char why[PATH_MAX + 256];
    FILE *out;
    int failed;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (options.check && options.update)
        return fail("options", "--check and --update exclude each other") ? EXIT_FAILURE : 0;
    out = open_memstream(&table, &table_bytes);
    failed = out ? bench_table_print(out, options.results, why, sizeof(why)) : -1;
    if (failed)
        fail("table", out ? why : strerror(errno));
    if (out && fclose(out))
        failed = fail("table", strerror(errno));
    if (!failed && (options.check || options.update))
        failed = apply(&options, table);
    else if (!failed)
        failed = fputs(table, stdout) < 0 || fflush(stdout);
    free(table);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
