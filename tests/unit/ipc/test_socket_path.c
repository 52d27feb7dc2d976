/* test_socket_path.c - everybody finds the same socket, and a user's own goes before the system's.
 */
#include "ipc/socket_path.h"

#include <fcntl.h>
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

#define USER 1000

static char folder[32], own[64], system_path[64];
static struct attnd_socket_world world;

static int make_folder(void **state)
{
    char directory[64];

    (void)state;
    strcpy(folder, "/tmp/attnd-test-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(directory, sizeof(directory), "%s/attnd", folder);
    snprintf(own, sizeof(own), "%s/attnd/attnd.sock", folder);
    snprintf(system_path, sizeof(system_path), "%s/system.sock", folder);
    world = (struct attnd_socket_world){.uid = USER, .runtime = folder, .system = system_path};
    return mkdir(directory, 0700);
}

static int remove_folder(void **state)
{
    char directory[64];

    (void)state;
    (void)unlink(own);
    (void)unlink(system_path);
    snprintf(directory, sizeof(directory), "%s/attnd", folder);
    return rmdir(directory) | rmdir(folder);
}

static void touch(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static void expect(enum attnd_socket_side side, const char *wanted)
{
    char path[108];

    assert_int_equal(attnd_socket_path_in(&world, side, path, sizeof(path)), strlen(wanted));
    assert_string_equal(path, wanted);
}

static void expect_both(const char *wanted)
{
    expect(ATTND_SOCKET_LISTEN, wanted);
    expect(ATTND_SOCKET_CONNECT, wanted);
}

static void the_variable_goes_before_everything_unless_it_is_empty(void **state)
{
    (void)state;
    touch(own);
    touch(system_path);
    world.given = "/s";
    expect_both("/s");
    world.uid = 0;
    expect_both("/s");
    world.given = "";
    world.uid = USER;
    expect_both(own);
}

static void a_user_has_a_place_of_its_own_and_root_the_systems(void **state)
{
    (void)state;
    expect_both(own);
    world.uid = 0; /* whatever directory a shell brought along */
    expect_both(system_path);
    world.uid = USER;
    world.runtime = NULL;
    expect_both(system_path);
    world.runtime = "";
    expect_both(system_path);
}

static void a_user_without_a_service_of_its_own_finds_the_systems(void **state)
{
    (void)state;
    touch(system_path);
    expect(ATTND_SOCKET_CONNECT, system_path);
    expect(ATTND_SOCKET_LISTEN, own);
    touch(own);
    expect_both(own);
}

static void a_path_that_is_cut_off_says_so(void **state)
{
    char path[8];

    (void)state;
    assert_int_equal(attnd_socket_path_in(&world, ATTND_SOCKET_LISTEN, path, sizeof(path)),
                     strlen(own));
    assert_memory_equal(path, own, 7);
    assert_int_equal(path[7], 0);
}

static void the_environment_is_what_the_rule_looks_at(void **state)
{
    char path[108];

    (void)state;
    setenv("ATTND_SOCKET", "/x/y", 1);
    assert_int_equal(attnd_socket_path(ATTND_SOCKET_CONNECT, path, sizeof(path)), 4);
    assert_string_equal(path, "/x/y");
    unsetenv("ATTND_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    (void)attnd_socket_path(ATTND_SOCKET_LISTEN, path, sizeof(path));
    assert_string_equal(path, "/run/attnd/attnd.sock");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_variable_goes_before_everything_unless_it_is_empty),
        CASE(a_user_has_a_place_of_its_own_and_root_the_systems),
        CASE(a_user_without_a_service_of_its_own_finds_the_systems),
        CASE(a_path_that_is_cut_off_says_so),
        CASE(the_environment_is_what_the_rule_looks_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
