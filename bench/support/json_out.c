/* json_out.c - one line a member, so that records under version control differ line by line. */
#include "bench/support/json_out.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

static void write_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        if ((unsigned char)*text < 0x20)
            fprintf(file, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, file);
    }
    fputc('"', file);
}

static void new_line(const struct bench_json_out *out)
{
    fputc('\n', out->file);
    for (int i = 0; i < out->depth; i++)
        fputs("  ", out->file);
}

static void member(struct bench_json_out *out, const char *name)
{
    if (!out->first)
        fputc(',', out->file);
    out->first = false;
    new_line(out);
    if (name) {
        write_string(out->file, name);
        fputs(": ", out->file);
    }
}

static void open_bracket(struct bench_json_out *out, char opening, char closing)
{
    assert(out->depth < BENCH_JSON_OUT_DEPTH_MAX);
    fputc(opening, out->file);
    out->closing[out->depth++] = closing;
    out->first = true;
}

void bench_json_out_begin(struct bench_json_out *out, FILE *file)
{
    *out = (struct bench_json_out){.file = file};
    open_bracket(out, '{', '}');
}

void bench_json_out_end(struct bench_json_out *out)
{
    bench_json_out_close(out);
    assert(!out->depth);
    fputc('\n', out->file);
}

void bench_json_out_object(struct bench_json_out *out, const char *name)
{
    member(out, name);
    open_bracket(out, '{', '}');
}

void bench_json_out_array(struct bench_json_out *out, const char *name)
{
    member(out, name);
    open_bracket(out, '[', ']');
}

void bench_json_out_close(struct bench_json_out *out)
{
    out->depth--;
    if (!out->first)
        new_line(out);
    out->first = false;
    fputc(out->closing[out->depth], out->file);
}

void bench_json_out_uint(struct bench_json_out *out, const char *name, uint64_t value)
{
    member(out, name);
    fprintf(out->file, "%" PRIu64, value);
}

void bench_json_out_double(struct bench_json_out *out, const char *name, double value)
{
    member(out, name);
    if (isfinite(value))
        fprintf(out->file, "%.9g", value);
    else
        fputs("null", out->file);
}

void bench_json_out_bool(struct bench_json_out *out, const char *name, bool value)
{
    member(out, name);
    fputs(value ? "true" : "false", out->file);
}

void bench_json_out_string(struct bench_json_out *out, const char *name, const char *value)
{
    member(out, name);
    write_string(out->file, value);
}
