/*
 * test_e2e_programs.c - the programs as somebody at a shell meets them: the engine that the README
 * prints, and what every program says of itself.
 */
#include "schemas/version.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const engine[] = {"examples/engine", NULL};

/* Keys are all zero, so the last of 8 tokens weighs 8 keys the same: log2(8). */
static void the_engine_of_the_readme_prints_what_it_says(void **state)
{
    char output[256];

    CHECK_EQUAL(harness_program(*state, engine, output, sizeof(output)), 0);
    check_true(!strcmp(output, "lse of the last token: 3\n"), output, __FILE__, __LINE__);
}

/* As the comments at the ends of the programs say: q and k are zero, so lse counts tokens. */
static void every_example_says_what_its_comment_promises(void **state)
{
    static const struct {
        const char *program, *output;
    } examples[] = {
        {"examples/decode", "the last of 50 tokens sees 50\n"},
        {"examples/handover", "the decode engine sees 24 tokens of the prefill engine\n"},
        {"examples/prefix", "behind the same prefix: 20 tokens, and 23\n"}};
    char output[256];

    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const char *const arguments[] = {examples[i].program, NULL};
        CHECK_EQUAL(harness_program(*state, arguments, output, sizeof(output)), 0);
        check_true(!strcmp(output, examples[i].output), output, __FILE__, __LINE__);
    }
}

/* The same in a stream, where there is one. */
static void the_example_of_a_graph_sees_every_token(void **state)
{
    static const char *const graph[] = {"examples/graph", NULL};
    char output[256];

    if (!e2e_on_gpu())
        skip();
    CHECK_EQUAL(harness_program(*state, graph, output, sizeof(output)), 0);
    check_true(!strcmp(output, "the last of 50 replays sees 50 tokens\n"), output, __FILE__,
               __LINE__);
}

static void without_a_service_it_fails(void **state)
{
    char output[256];

    harness_kill_daemon(*state);
    CHECK_EQUAL(harness_program(*state, engine, output, sizeof(output)), 1);
    CHECK_EQUAL(strlen(output), 0);
}

/* Of two processes the one that was refused says so, and the other one nothing. */
static void without_a_service_every_example_says_so_in_one_line(void **state)
{
    static const char *const examples[] = {"examples/engine", "examples/decode",
                                           "examples/handover", "examples/prefix"};
    static const char reason[] = "ATTND_E_DISCONNECTED: ";
    char output[256], said[256];

    harness_kill_daemon(*state);
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const char *const arguments[] = {examples[i], NULL};
        const int file = memfd_create("stderr", MFD_CLOEXEC), before = dup(STDERR_FILENO);

        CHECK(file >= 0 && before >= 0 && dup2(file, STDERR_FILENO) >= 0);
        const int status = harness_program(*state, arguments, output, sizeof(output));
        CHECK(dup2(before, STDERR_FILENO) >= 0);
        const ssize_t length = pread(file, said, sizeof(said) - 1, 0);
        said[length > 0 ? length : 0] = 0;
        close(before);
        close(file);
        CHECK_EQUAL(status, 1);
        check_true(!strncmp(said, reason, sizeof(reason) - 1) &&
                       strchr(said, '\n') == said + strlen(said) - 1,
                   said, __FILE__, __LINE__);
    }
}

static void every_program_says_what_it_is_and_refuses_what_it_does_not_know(void **state)
{
    static const struct {
        const char *program, *version;
        int usage_status;
    } programs[] = {{"attnd", "attnd " ATTND_VERSION "\n", 1},
                    {"attnd-worker", "attnd-worker " ATTND_VERSION "\n", 1},
                    {"attnctl", "attnctl " ATTND_VERSION "\n", 1},
                    {"bench/attnd-replay", "attnd-replay " ATTND_VERSION "\n", 64}};
    char output[16384], again[16384];

    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        const char *const version[] = {programs[i].program, "--version", NULL};
        const char *const help[] = {programs[i].program, "--help", NULL};
        const char *const short_help[] = {programs[i].program, "-h", NULL};
        const char *const wrong[] = {programs[i].program, "--no-such-option", NULL};

        CHECK_EQUAL(harness_program(*state, version, output, sizeof(output)), 0);
        check_true(!strcmp(output, programs[i].version), output, __FILE__, __LINE__);
        CHECK_EQUAL(harness_program(*state, help, output, sizeof(output)), 0);
        CHECK(!strncmp(output, "Usage: ", 7) && strstr(output, "--help"));
        CHECK(strstr(output, "Exit codes:") || strstr(output, "Exit status:"));
        CHECK_EQUAL(harness_program(*state, short_help, again, sizeof(again)), 0);
        check_true(!strcmp(output, again), again, __FILE__, __LINE__);
        CHECK_EQUAL(harness_program(*state, wrong, output, sizeof(output)),
                    programs[i].usage_status);
    }
}

/* Nobody starts it by hand, but a wrong number must not become another one. */
static void the_worker_refuses_numbers_that_are_none(void **state)
{
    static const char *const options[] = {"--threads=",     "--threads=x",
                                          "--threads=-1",   "--threads=2x",
                                          "--scratch=1G",   "--scratch=1e9",
                                          "--parent=-5",    "--parent=9999999999",
                                          "--log-level=99", "--scratch=99999999999999999999"};
    char output[8192];

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const char *const wrong[] = {"attnd-worker", options[i], NULL};
        CHECK_EQUAL(harness_program(*state, wrong, output, sizeof(output)), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(the_engine_of_the_readme_prints_what_it_says),
        E2E_TEST(every_example_says_what_its_comment_promises),
        E2E_TEST(the_example_of_a_graph_sees_every_token),
        E2E_TEST(without_a_service_it_fails),
        E2E_TEST(without_a_service_every_example_says_so_in_one_line),
        E2E_TEST(every_program_says_what_it_is_and_refuses_what_it_does_not_know),
        E2E_TEST(the_worker_refuses_numbers_that_are_none),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
