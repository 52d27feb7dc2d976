/* test_listen.c - a name is taken from the dead, never from the living, and only one's own let go.
 */
#include "service/daemon/listen.h"
#include "tests/support/rigs/socket_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static int can_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    memcpy(address.sun_path, socket_path, sizeof(socket_path));
    int rc = connect(fd, (const struct sockaddr *)&address, sizeof(address));
    close(fd);
    return rc == 0;
}

static void a_socket_of_the_dead_is_replaced(void **state)
{
    struct attnd_listen first, second;
    struct attnd_fault fault = {0};
    (void)state;
    assert_int_equal(attnd_listen_open(socket_path, 0600, &first, &fault), 0);
    close(first.fd);
    assert_false(can_connect());
    assert_int_equal(attnd_listen_open(socket_path, 0600, &second, &fault), 0);
    assert_true(can_connect());
    close(second.fd);
}

static void a_socket_of_the_living_is_not_taken(void **state)
{
    struct attnd_listen living, other;
    struct attnd_fault fault = {0};
    (void)state;
    assert_int_equal(attnd_listen_open(socket_path, 0600, &living, &fault), 0);
    assert_int_equal(attnd_listen_open(socket_path, 0600, &other, &fault), -ATTND_E_BUSY);
    assert_true(can_connect());
    close(living.fd);
}

/* As the kernel keeps a socket of one that was killed while it takes its io_uring apart. */
static void a_socket_that_outlives_its_process_is_waited_for(void **state)
{
    const struct timespec longer_than_a_living_one_is_asked = {1, 500000000};
    struct attnd_listen first, second;
    struct attnd_fault fault = {0};
    int status;
    (void)state;
    pid_t dead = fork();
    if (dead == 0) {
        int rc = attnd_listen_open(socket_path, 0600, &first, &fault);
        if (rc == 0 && fork() == 0)
            nanosleep(&longer_than_a_living_one_is_asked, NULL);
        _exit(rc != 0);
    }
    assert_int_equal(waitpid(dead, &status, 0), dead);
    assert_int_equal(status, 0);
    assert_true(can_connect());
    assert_int_equal(attnd_listen_open(socket_path, 0600, &second, &fault), 0);
    close(second.fd);
}

static void what_is_no_socket_stays(void **state)
{
    struct attnd_listen listener;
    struct attnd_fault fault = {0};
    struct stat file;
    (void)state;
    int fd = open(socket_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(attnd_listen_open(socket_path, 0600, &listener, &fault), -ATTND_E_INVALID);
    assert_int_equal(lstat(socket_path, &file), 0);
    assert_true(S_ISREG(file.st_mode));
}

static void the_file_has_the_mode_asked_for_whatever_the_umask(void **state)
{
    struct attnd_listen listener;
    struct attnd_fault fault = {0};
    struct stat file;
    (void)state;
    mode_t before = umask(0);
    assert_int_equal(attnd_listen_open(socket_path, 0600, &listener, &fault), 0);
    assert_int_equal(umask(before), 0); /* it is given back */
    assert_int_equal(lstat(socket_path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    close(listener.fd);
}

static void only_ones_own_name_is_let_go(void **state)
{
    struct attnd_listen first, second;
    struct attnd_fault fault = {0};
    struct stat file;
    (void)state;
    assert_int_equal(attnd_listen_open(socket_path, 0600, &first, &fault), 0);
    assert_int_equal(unlink(socket_path), 0); /* somebody cleans up, somebody else starts */
    assert_int_equal(attnd_listen_open(socket_path, 0600, &second, &fault), 0);
    attnd_listen_unlink(&first, socket_path);
    assert_true(can_connect());
    attnd_listen_unlink(&second, socket_path);
    assert_int_equal(lstat(socket_path, &file), -1);
    close(first.fd);
    close(second.fd);
}

static void a_place_that_is_not_there_is_the_systems_error(void **state)
{
    struct attnd_listen listener;
    struct attnd_fault fault = {0};
    char far[128];
    (void)state;
    snprintf(far, sizeof(far), "%s/not/sock", socket_folder);
    assert_int_equal(attnd_listen_open(far, 0600, &listener, &fault), -ATTND_E_SYSTEM);
    assert_int_equal(fault.field, ATTND_F_SOCKET);
    assert_int_equal(fault.value, ENOENT);
    memset(far, 'x', sizeof(far) - 1);
    far[sizeof(far) - 1] = '\0';
    assert_int_equal(attnd_listen_open(far, 0600, &listener, &fault), -ATTND_E_INVALID);
    assert_int_equal(fault.value, sizeof(far) - 1);
    assert_int_equal(fault.limit, 107);
}

static void a_lock_that_others_hold_on_the_directory_is_nothing_to_us(void **state)
{
    struct attnd_listen listener;
    struct attnd_fault fault = {0};
    (void)state;
    int held = open(socket_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX), 0);
    assert_int_equal(attnd_listen_open(socket_path, 0600, &listener, &fault), 0);
    close(listener.fd);
    close(held);
}

static void a_start_waits_for_another_one_and_not_for_ever(void **state)
{
    struct attnd_listen listener;
    struct attnd_fault fault = {0};
    struct stat file;
    char lock[80];
    (void)state;
    snprintf(lock, sizeof(lock), "%s.lock", socket_path);
    int held = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(held, LOCK_EX), 0);
    assert_int_equal(attnd_listen_open(socket_path, 0600, &listener, &fault), -ATTND_E_TIMEOUT);
    assert_int_equal(fault.limit, 5000);
    close(held);
    assert_int_equal(attnd_listen_open(socket_path, 0600, &listener, &fault), 0);
    close(listener.fd);
    assert_int_equal(lstat(lock, &file), -1); /* nothing is left behind */
}

static void a_lock_of_another_user_is_not_waited_for(void **state)
{
    struct attnd_listen listener;
    struct attnd_fault fault = {0};
    char lock[80];
    (void)state;
    snprintf(lock, sizeof(lock), "%s.lock", socket_path);
    int held = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fchown(held, geteuid() + 1, (gid_t)-1) < 0) {
        close(held);
        unlink(lock);
        skip(); /* only root gives a file away */
    }
    assert_int_equal(attnd_listen_open(socket_path, 0600, &listener, &fault), -ATTND_E_PERMISSION);
    assert_int_equal(fault.value, geteuid() + 1);
    close(held);
    unlink(lock);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, socket_folder_make, socket_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_socket_of_the_dead_is_replaced),
        CASE(a_socket_of_the_living_is_not_taken),
        CASE(a_socket_that_outlives_its_process_is_waited_for),
        CASE(what_is_no_socket_stays),
        CASE(the_file_has_the_mode_asked_for_whatever_the_umask),
        CASE(only_ones_own_name_is_let_go),
        CASE(a_lock_that_others_hold_on_the_directory_is_nothing_to_us),
        CASE(a_start_waits_for_another_one_and_not_for_ever),
        CASE(a_lock_of_another_user_is_not_waited_for),
        CASE(a_place_that_is_not_there_is_the_systems_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
