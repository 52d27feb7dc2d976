/* test_doctor.c - what the doctor makes of what it finds: every opinion, with answers made up. */
#include "service/ctl/attnctl.h"
#include "service/ctl/doctor.h"
#include "tests/support/harness/json.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/attnd-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"control", "sock"};
    char path[96];
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static int listen_at(const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", folder, name);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

/* A finding that is not OK says what to do, or there is nothing that anybody could. */
static void expect(const struct attnd_finding *finding, const char *subject,
                   enum attnd_health health, const char *what)
{
    assert_string_equal(finding->subject, subject);
    assert_int_equal(finding->health, health);
    assert_non_null(strstr(finding->what, what));
    assert_true(health != ATTND_HEALTH_OK || finding->mend[0] == '\0');
}

static void limits_are_judged_by_their_numbers(void **state)
{
    struct attnd_finding finding;
    (void)state;
    attnd_doctor_memlock(UINT64_MAX, &finding);
    expect(&finding, "memlock", ATTND_HEALTH_OK, "no limit");
    attnd_doctor_memlock(8u << 20, &finding);
    expect(&finding, "memlock", ATTND_HEALTH_OK, "8 MiB");
    attnd_doctor_memlock(64u << 10, &finding);
    expect(&finding, "memlock", ATTND_HEALTH_WARN, "64 KiB");
    attnd_doctor_files(4096, &finding);
    expect(&finding, "files", ATTND_HEALTH_OK, "4096");
    attnd_doctor_files(1024, &finding);
    expect(&finding, "files", ATTND_HEALTH_WARN, "1024");
    assert_non_null(strstr(finding.mend, "ulimit"));
}

static void what_the_kernel_refuses_is_said_with_its_reason(void **state)
{
    struct attnd_finding finding;
    (void)state;
    attnd_doctor_loop("io_uring", "", &finding);
    expect(&finding, "io_uring", ATTND_HEALTH_OK, "futex");
    attnd_doctor_loop("epoll", "it was refused: nobody knows", &finding);
    expect(&finding, "io_uring", ATTND_HEALTH_WARN, "epoll is used instead: it was refused");
    attnd_doctor_memfd(0, &finding);
    expect(&finding, "memfd", ATTND_HEALTH_OK, "sealed");
    attnd_doctor_memfd(EPERM, &finding);
    expect(&finding, "memfd", ATTND_HEALTH_FAIL, strerror(EPERM));
    attnd_doctor_pidfd(0, -1, &finding);
    expect(&finding, "pidfd", ATTND_HEALTH_OK, "there");
    attnd_doctor_pidfd(0, 1234, &finding);
    expect(&finding, "pidfd", ATTND_HEALTH_OK, "this pid namespace");
    attnd_doctor_pidfd(0, 0, &finding);
    expect(&finding, "pidfd", ATTND_HEALTH_WARN, "another pid namespace");
    attnd_doctor_pidfd(ENOSYS, -1, &finding);
    expect(&finding, "pidfd", ATTND_HEALTH_WARN, strerror(ENOSYS));
}

static void the_place_of_the_socket_is_tried(void **state)
{
    struct attnd_finding finding;
    char path[128], name[160];
    (void)state;
    snprintf(path, sizeof(path), "%s/sock", folder);
    attnd_doctor_socket(path, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_OK, "is free");
    int fd = listen_at("sock", SOCK_SEQPACKET);
    attnd_doctor_socket(path, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_OK, "a service listens");
    close(fd);
    attnd_doctor_socket(path, 0, &finding); /* a dead one is replaced */
    expect(&finding, "socket", ATTND_HEALTH_OK, "is free");
    assert_int_equal(unlink(path), 0);
    close(listen_at("sock", SOCK_STREAM));
    assert_int_equal(unlink(path), 0);
    fd = listen_at("sock", SOCK_STREAM);
    attnd_doctor_socket(path, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_FAIL, strerror(EPROTOTYPE));
    close(fd);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(unlink(path), 0);
    attnd_doctor_socket(path, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_WARN, "anybody");
    assert_int_equal(chmod(folder, 01777), 0); /* as /tmp: only its owner takes a name away */
    attnd_doctor_socket(path, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_OK, "is free");
    snprintf(name, sizeof(name), "%s/not/there", folder);
    attnd_doctor_socket(name, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_FAIL, strerror(ENOENT));
    snprintf(name, sizeof(name), "%s/not/there/sock", folder);
    attnd_doctor_socket(name, 1, &finding); /* one directory would be made, but not two */
    expect(&finding, "socket", ATTND_HEALTH_FAIL, strerror(ENOENT));
    snprintf(name, sizeof(name), "%s/not-there/sock", folder);
    attnd_doctor_socket(name, 1, &finding);
    expect(&finding, "socket", ATTND_HEALTH_OK, "is free");
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    attnd_doctor_socket(name, 0, &finding);
    expect(&finding, "socket", ATTND_HEALTH_FAIL, strerror(ENAMETOOLONG));
}

static void driver_and_device_are_judged(void **state)
{
    struct attnd_finding finding;
    struct attnd_doctor_gpu gpu = {0};
    (void)state;
    attnd_doctor_driver(&gpu, &finding);
    expect(&finding, "driver", ATTND_HEALTH_WARN, "--backend cpu");
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_WARN, "none");
    gpu.driver = -1;
    gpu.error = 803;
    attnd_doctor_driver(&gpu, &finding);
    expect(&finding, "driver", ATTND_HEALTH_FAIL, "error 803");
    gpu.driver = 12040;
    attnd_doctor_driver(&gpu, &finding);
    expect(&finding, "driver", ATTND_HEALTH_FAIL, "CUDA 12.4");
    gpu.driver = 13000;
    attnd_doctor_driver(&gpu, &finding);
    expect(&finding, "driver", ATTND_HEALTH_OK, "CUDA 13.0");
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_WARN, "none");
    gpu.count = 2;
    strcpy(gpu.name, "NVIDIA T4");
    gpu.capability = 75;
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_FAIL, "T4: compute capability 7.5");
    strcpy(gpu.name, "NVIDIA H100");
    gpu.capability = 90;
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_FAIL, "exported");
    gpu.exports = 1;
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_OK, "the first of 2, unless attnd --device");
    strcpy(gpu.name, "NVIDIA A100");
    gpu.capability = 80;
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_WARN,
           "A100: compute capability 8.0 has the kernels of sm_80");
    gpu.capability = 90;
    gpu.compute_mode = 2;
    attnd_doctor_device(&gpu, &finding);
    expect(&finding, "gpu", ATTND_HEALTH_FAIL, "prohibits");
}

static void mps_is_found_by_its_control_socket(void **state)
{
    struct attnd_doctor_mps mps;
    (void)state;
    attnd_doctor_mps_look("/nonexistent", &mps);
    assert_int_equal(mps.state, 0);
    attnd_doctor_mps_look(folder, &mps);
    assert_int_equal(mps.state, 0);
    int fd = listen_at("control", SOCK_SEQPACKET); /* whatever its type is */
    attnd_doctor_mps_look(folder, &mps);
    assert_int_equal(mps.state, 1);
    assert_int_equal(mps.owner, getuid());
    close(fd);
    attnd_doctor_mps_look(folder, &mps);
    assert_int_equal(mps.state, -1);
}

static void mps_is_judged_by_whom_it_serves_and_what_it_allows(void **state)
{
    struct attnd_finding finding;
    struct attnd_doctor_gpu gpu = {0};
    struct attnd_doctor_mps mps = {.directory = "/tmp/pipe", .clients = -1, .owner = 1000};
    (void)state;
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_OK, "not there, nor a GPU");
    gpu.driver = 13000;
    gpu.count = 1;
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "does not run: processes take turns on the GPU");
    mps.state = -1;
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "a dead one left its socket");
    mps.state = -2;
    attnd_doctor_mps(&mps, 1001, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "not for this user");
    mps.state = 1;
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_OK, "residency is elastic");
    attnd_doctor_mps(&mps, 1001, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "one user at a time");
    assert_non_null(strstr(finding.mend, "-multiuser-server"));
    mps.owner = 0;
    attnd_doctor_mps(&mps, 1001, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_OK, "residency is elastic");
    mps.percentage = 50;
    attnd_doctor_mps(&mps, 1001, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "50 %");
    mps.percentage = 100;
    mps.clients = 3;
    attnd_doctor_mps(&mps, 1001, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_OK, "3 clients");
    mps.clients = 48;
    attnd_doctor_mps(&mps, 1001, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_FAIL, "48 clients");
}

static void what_no_mps_costs_is_a_figure_of_this_machine_or_none(void **state)
{
    struct attnd_finding finding;
    const struct attnd_doctor_gpu gpu = {.driver = 13000, .count = 1};
    struct attnd_doctor_mps mps = {.directory = "/tmp/pipe", .state = -1, .clients = -1};
    (void)state;
    mps.switch_cost_us = 287;
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "costs two switches, 287 us as measured here");
    mps.switch_cost_us = 0; /* the service that answers has no figure */
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN, "two switches, which have not been measured here");
    attnd_doctor_mps_look("/nonexistent", &mps); /* nobody has been asked yet */
    mps.state = -1;
    attnd_doctor_mps(&mps, 1000, &gpu, &finding);
    expect(&finding, "mps", ATTND_HEALTH_WARN,
           "two switches (measured at the service's start; none runs here)");
}

static char *print(const struct attnd_finding *findings, uint32_t count, int json)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(attnctl_print_findings(out, findings, count, json), 0);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void the_worst_finding_is_the_verdict(void **state)
{
    struct attnd_finding findings[3] = {0};
    (void)state;
    assert_int_equal(attnd_doctor_worst(findings, 0), ATTND_HEALTH_OK);
    attnd_doctor_say(&findings[0], "one", ATTND_HEALTH_OK, "", "%d", 1);
    attnd_doctor_say(&findings[1], "two", ATTND_HEALTH_FAIL, "try \"x\"", "a\\b");
    attnd_doctor_say(&findings[2], "three", ATTND_HEALTH_WARN, "wait", "soon");
    assert_int_equal(attnd_doctor_worst(findings, 1), ATTND_HEALTH_OK);
    assert_int_equal(attnd_doctor_worst(findings, 3), ATTND_HEALTH_FAIL);

    char *text = print(findings, 3, 1);
    const json_t *report = json_document(text);
    const json_t *list = json_object_get(report, "findings");
    assert_true(json_is(report, "worst", "FAIL"));
    assert_int_equal(json_array_size(list), 3);
    assert_true(json_is(json_array_get(list, 1), "mend", "try \"x\""));
    assert_true(json_is(json_array_get(list, 2), "health", "WARN"));
    free(text);
    text = print(findings, 3, 0);
    assert_non_null(strstr(text, "OK    one       1\n"));
    assert_non_null(strstr(text, "FAIL  two       a\\b\n"));
    assert_non_null(strstr(text, "-> wait\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_judged_by_their_numbers),
        cmocka_unit_test(what_the_kernel_refuses_is_said_with_its_reason),
        cmocka_unit_test_setup_teardown(the_place_of_the_socket_is_tried, make_folder,
                                        remove_folder),
        cmocka_unit_test(driver_and_device_are_judged),
        cmocka_unit_test_setup_teardown(mps_is_found_by_its_control_socket, make_folder,
                                        remove_folder),
        cmocka_unit_test(mps_is_judged_by_whom_it_serves_and_what_it_allows),
        cmocka_unit_test(what_no_mps_costs_is_a_figure_of_this_machine_or_none),
        cmocka_unit_test(the_worst_finding_is_the_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
