/* test_options.c - the daemon's command line, its place for the socket, and its word to systemd. */
#include "service/daemon/config.h"
#include "service/daemon/listen.h"
#include "service/daemon/notify.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct attnd_options parse(const char *const *arguments)
{
    struct attnd_options options;
    char *argv[20] = {(char *)(uintptr_t) "attnd"};
    int argc = 1;
    while (arguments[argc - 1]) {
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
        argc++;
    }
    attnd_options_parse(argc, argv, &options);
    return options;
}

static void what_is_not_given_has_a_default(void **state)
{
    (void)state;
    setenv("ATTND_SOCKET", "/somewhere/a.sock", 1);
    struct attnd_options options = parse((const char *const[]){NULL});
    assert_string_equal(options.socket_path, "/somewhere/a.sock");
    assert_string_equal(options.backend, "auto");
    assert_null(options.worker_path);
    assert_null(options.isa);
    assert_int_equal(options.loop, ATTND_LOOP_AUTO);
    assert_int_equal(options.threads, 0);
    assert_int_equal(options.trust, 0); /* unless somebody says so */
    assert_string_equal(options.residency, "auto");
    assert_int_equal(options.device, 0);
    assert_int_equal(options.sms, 0);
    assert_int_equal(options.watchdog_s, 3);
    assert_null(options.inject);
    assert_true(options.heap_bytes > 0);
    assert_int_equal(options.scratch_bytes, 0); /* the worker knows its memory */
    assert_true(options.memory_max_bytes > 0);
    assert_true(options.host_memory_max_bytes > options.memory_max_bytes); /* one leaves some */
    assert_true(options.device_memory_max_bytes == 0); /* the machine's says nothing of the GPU's */
    assert_int_equal(options.allow_uids_count, 1);
    assert_int_equal(options.allow_uids[0], getuid());
    assert_int_equal(options.log_level, ATTND_LOG_INFO);
}

static void only_a_directory_that_nobody_has_named_is_made(void **state)
{
    (void)state;
    setenv("ATTND_SOCKET", "/somewhere/a.sock", 1);
    assert_int_equal(parse((const char *const[]){NULL}).socket_default, 0);
    setenv("ATTND_SOCKET", "", 1);
    assert_int_equal(parse((const char *const[]){NULL}).socket_default, 1);
    assert_int_equal(parse((const char *const[]){"--socket", "/x/y", NULL}).socket_default, 0);
    unsetenv("ATTND_SOCKET");
    assert_int_equal(parse((const char *const[]){NULL}).socket_default, 1);
}

static void the_workers_way_of_living_is_an_option(void **state)
{
    (void)state;
    struct attnd_options options =
        parse((const char *const[]){"-s", "/x", "--residency=shared", "--sms=40", "--watchdog=0",
                                    "--inject=stall", "--device=3", "--reserve=8", NULL});
    assert_string_equal(options.residency, "shared");
    assert_int_equal(options.device, 3);
    assert_int_equal(options.sms, 40);
    assert_int_equal(options.reserve, 8);
    assert_int_equal(options.watchdog_s, 0);
    assert_string_equal(options.inject, "stall");
}

static void what_is_given_is_taken(void **state)
{
    (void)state;
    struct attnd_options options = parse((const char *const[]){
        "-s", "/x", "--backend=cpu", "--isa=avx2", "--threads=3", "--loop=epoll", "--heap=1M",
        "--scratch=2M", "--memory-max=3G", "--host-memory-max=5G", "--device-memory-max=7G",
        "--allow-uid=1", "--allow-uid=2", "--worker=/w", "--trust", "-q", NULL});
    assert_string_equal(options.socket_path, "/x");
    assert_string_equal(options.backend, "cpu");
    assert_string_equal(options.isa, "avx2");
    assert_int_equal(options.threads, 3);
    assert_int_equal(options.loop, ATTND_LOOP_EPOLL);
    assert_int_equal(options.heap_bytes, 1 << 20);
    assert_int_equal(options.scratch_bytes, 2 << 20);
    assert_true(options.memory_max_bytes == (uint64_t)3 << 30);
    assert_true(options.host_memory_max_bytes == (uint64_t)5 << 30);
    assert_true(options.device_memory_max_bytes == (uint64_t)7 << 30);
    assert_int_equal(options.trust, 1);
    assert_int_equal(options.allow_uids_count, 2);
    assert_int_equal(options.allow_uids[1], 2);
    assert_string_equal(options.worker_path, "/w");
    assert_int_equal(options.log_level, ATTND_LOG_WARNING);
}

static void rates_are_four_numbers_or_measured(void **state)
{
    (void)state;
    struct attnd_options options =
        parse((const char *const[]){"-s", "/x", "--rates=5200,60,61,4400", NULL});
    assert_int_equal(options.rates.source, ATTND_RATES_GIVEN);
    assert_int_equal(options.rates.worker_gflops, 5200);
    assert_int_equal(options.rates.worker_gbps, 60);
    assert_int_equal(options.rates.worker_l2_gbps, 61);
    assert_int_equal(options.rates.memory_gbps, 4400);
    options = parse((const char *const[]){"-s", "/x", "--rates=1,1,1,1", "--rates=auto", NULL});
    assert_int_equal(options.rates.source, ATTND_RATES_NONE);
    assert_int_equal(options.rates.worker_gflops, 0);
}

/* In a child, because bad usage exits. */
static int exit_code(const char *const *arguments)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, STDERR_FILENO);
        dup2(null, STDOUT_FILENO);
        parse(arguments);
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void bad_usage_exits_with_1_and_questions_with_0(void **state)
{
    (void)state;
    const char *const bad[] = {"--heap=0",         "--heap=x",       "--device-memory-max=0",
                               "--threads=-1",     "--threads=9999", "--loop=kqueue",
                               "--backend=x",      "--isa=sse",      "--socket=",
                               "--allow-uid=a",    "argument",       "--no-such-thing",
                               "--residency=park", "--sms=1",        "--sms=2000",
                               "--watchdog=x",     "--inject=luck",  "--device=64",
                               "--device=GPU-0",   "--rates=1,2,3",  "--rates=1,2,3,4,5",
                               "--rates=1,2,3,0",  "--rates=,,,",    "--rates=1,2,3,65536",
                               "--rates=",         "--reserve=1",    "--reserve=2000"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(exit_code((const char *const[]){bad[i], NULL}), ATTND_EXIT_USAGE);
    assert_int_equal(exit_code((const char *const[]){"--help", NULL}), 0);
    assert_int_equal(exit_code((const char *const[]){"--version", NULL}), 0);
    char path[200] = "";
    memset(path, 'x', sizeof(path) - 1);
    setenv("ATTND_SOCKET", path, 1);
    assert_int_equal(exit_code((const char *const[]){NULL}), ATTND_EXIT_USAGE);
    unsetenv("ATTND_SOCKET");
}

static void the_service_manager_is_told_where_it_asks_to_be(void **state)
{
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char got[16] = "", name[32];
    int length = snprintf(name, sizeof(name), "@attnd-test-%d", (int)getpid());
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length);
    memcpy(address.sun_path + 1, name + 1, (size_t)length - 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, bytes), 0);
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(attnd_notify("READY=1"), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(attnd_notify("READY=1"), 1);
    assert_int_equal(read(fd, got, sizeof(got) - 1), 7);
    assert_string_equal(got, "READY=1");
    close(fd);
    assert_int_equal(attnd_notify("READY=1"), -ATTND_E_SYSTEM);
    setenv("NOTIFY_SOCKET", "neither", 1);
    assert_int_equal(attnd_notify("READY=1"), -ATTND_E_SYSTEM);
}

/* In a folder of its own, because the way to it must be of nobody else's. */
static void what_a_file_names_is_kept_when_the_file_is_closed(void **state)
{
    char folder[] = "/tmp/attnd-test-XXXXXX", path[64], argument[80];

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/attnd.conf", folder);
    snprintf(argument, sizeof(argument), "--config=%s", path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    (void)fprintf(file, "modules = %s\nworker = %s/worker\nsocket = /x\n", folder, folder);
    assert_int_equal(fclose(file), 0);
    char *argv[] = {(char *)(uintptr_t) "attnd", argument, NULL};
    struct attnd_options options;
    attnd_options_parse(2, argv, &options);
    (void)unlink(path);
    (void)rmdir(folder);
    assert_string_equal(options.modules, folder);
    assert_memory_equal(options.worker_path, folder, strlen(folder));
    assert_string_equal(options.worker_path + strlen(folder), "/worker");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_given_has_a_default),
        cmocka_unit_test(only_a_directory_that_nobody_has_named_is_made),
        cmocka_unit_test(what_is_given_is_taken),
        cmocka_unit_test(rates_are_four_numbers_or_measured),
        cmocka_unit_test(the_workers_way_of_living_is_an_option),
        cmocka_unit_test(what_a_file_names_is_kept_when_the_file_is_closed),
        cmocka_unit_test(bad_usage_exits_with_1_and_questions_with_0),
        cmocka_unit_test(the_service_manager_is_told_where_it_asks_to_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
