/*
 * top.c - `attnctl top`: looks again and again, and shows what happened in between.
 *
 * On a terminal it is a screen that is drawn over, by ncurses, until q is pressed. Elsewhere it
 * prints one table after another, or lines of JSON, which a script can read.
 */
#include "service/args/args.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"
#include "service/ctl/top_rows.h"

#include <curses.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEY_ONCE = 'o', KEY_INTERVAL = 'i' };

struct top_options {
    struct attnctl_options common;
    double interval_s;
    int once;
};

struct looks {
    const struct top_options *options;
    Attnd__Reply *before, *now;
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct top_options *options = state->input;

    if (key == KEY_ONCE) {
        options->once = 1;
    } else if (key == KEY_INTERVAL) {
        options->interval_s = attnd_args_decimal(state, "interval", text, 0.01, 3600);
    } else {
        return attnctl_parse_common(key, text, state, &options->common);
    }
    return 0;
}

static enum attnctl_exit look(struct looks *looks)
{
    if (looks->before)
        attnd__reply__free_unpacked(looks->before, NULL);
    looks->before = looks->now;
    looks->now = NULL;
    return attnctl_ask_status(looks->options->common.socket_path, &looks->now);
}

static void compare(const struct looks *looks, struct attnctl_top *top)
{
    attnctl_top_compare(looks->before ? looks->before->status : NULL, looks->now->status, top);
}

/* ---- lines ---- */

static enum attnctl_exit print_looks(struct looks *looks)
{
    const double interval_s = looks->options->interval_s;
    const struct timespec pause = {.tv_sec = (time_t)interval_s,
                                   .tv_nsec =
                                       (long)((interval_s - (double)(time_t)interval_s) * 1e9)};
    static struct attnctl_top top;
    enum attnctl_exit code = look(looks);

    while (code == ATTNCTL_EXIT_OK) {
        nanosleep(&pause, NULL);
        code = look(looks);
        if (code != ATTNCTL_EXIT_OK)
            break;
        compare(looks, &top);
        int rc = 0;
        if (looks->options->common.json)
            rc = attnd_json_print(stdout, attnctl_top_json(&top), JSON_COMPACT);
        else
            attnctl_top_print(stdout, &top);
        if (rc < 0 || fflush(stdout) != 0)
            code = ATTNCTL_EXIT_ANSWER;
        if (looks->options->once)
            break;
        if (!looks->options->common.json)
            putchar('\n');
    }
    return code;
}

/* ---- a screen ---- */

static void draw(const struct looks *looks)
{
    static struct attnctl_top top;
    char *text = NULL, *rest;
    size_t bytes;
    int row = 0;
    FILE *lines = open_memstream(&text, &bytes);

    if (!lines)
        return;
    compare(looks, &top);
    attnctl_top_print(lines, &top);
    if (fclose(lines) == 0) {
        erase();
        rest = text;
        for (const char *line; row < LINES && (line = strtok_r(rest, "\n", &rest)); row++) {
            if (row == 1)
                attron(A_REVERSE);
            mvaddnstr(row, 0, line, COLS);
            attroff(A_REVERSE);
        }
        refresh();
    }
    free(text);
}

static enum attnctl_exit show_looks(struct looks *looks)
{
    enum attnctl_exit code = look(looks);

    if (code != ATTNCTL_EXIT_OK)
        return code;
    if (!initscr()) {
        fprintf(stderr, "attnctl: this terminal cannot be drawn on: try --once\n");
        return ATTNCTL_EXIT_USAGE;
    }
    cbreak();
    noecho();
    curs_set(0);
    timeout((int)(looks->options->interval_s * 1e3));
    for (int key = 0; key != 'q' && code == ATTNCTL_EXIT_OK; key = getch()) {
        if (key == ERR) { /* no key for the interval */
            code = look(looks);
            if (code != ATTNCTL_EXIT_OK)
                break;
        }
        draw(looks);
    }
    endwin();
    if (code != ATTNCTL_EXIT_OK)
        fprintf(stderr, "attnctl: the service is gone\n");
    return code;
}

enum attnctl_exit attnctl_top(int argc, char **argv)
{
    static const struct argp_option list[] = {
        {"once", KEY_ONCE, NULL, 0, "Look twice, print what happened in between, and leave", 0},
        {"interval", KEY_INTERVAL, "SECONDS", 0, "Between two looks (default: 1)", 0},
        {"json", ATTNCTL_KEY_JSON, NULL, 0, "One JSON object for each look, a line each", 0},
        ATTNCTL_SOCKET_OPTION,
        {0}};
    static const struct argp parser = {
        .options = list,
        .parser = parse_option,
        .children = attnd_args_help,
        .doc = "Show what sessions do now: rates and shares since the last look, the age of the "
               "oldest operation in flight, p50 and p99 of submitted runs, pages, memory.\vOn a "
               "terminal the screen is drawn over until q is pressed. Elsewhere a table or a line "
               "is printed for each look."};
    struct top_options options = {.interval_s = 1};
    struct looks looks = {.options = &options};

    attnctl_parse_with(&parser, argc, argv, &options);
    enum attnctl_exit code = options.once || options.common.json || !isatty(STDOUT_FILENO)
                                 ? print_looks(&looks)
                                 : show_looks(&looks);
    if (looks.before)
        attnd__reply__free_unpacked(looks.before, NULL);
    if (looks.now)
        attnd__reply__free_unpacked(looks.now, NULL);
    return code;
}
