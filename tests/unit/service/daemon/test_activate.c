/* test_activate.c - a socket that is handed over is taken if it is for us and right, and else
 * named. */
#include "service/daemon/activate.h"
#include "tests/support/rigs/socket_folder.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct handed {
    int type;         /* of the socket; 0: standard input stands in for it */
    int named, hears; /* is it bound to its path, does it listen? */
    const char *fds;  /* $LISTEN_FDS */
    int of_another;   /* $LISTEN_PID */
};

/* Descriptor 3, as a service manager leaves it. */
static void put_in_place(const struct handed *handed)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = handed->type ? socket(AF_UNIX, handed->type, 0) : dup(STDIN_FILENO);

    memcpy(address.sun_path, socket_path, sizeof(socket_path));
    /* Without a path it has a name that the kernel makes up, in the abstract namespace. */
    const socklen_t bytes = handed->named ? sizeof(address) : sizeof(address.sun_family);
    if (handed->type && bind(fd, (const struct sockaddr *)&address, bytes) < 0)
        _exit(100);
    if (handed->hears && listen(fd, 4) < 0)
        _exit(101);
    if (fd != 3 && dup2(fd, 3) < 0)
        _exit(102);
}

/* In a child: descriptor 3 may be the test program's own. Return: attnd_activate()'s, and for 1
 * whether all is as it must be then. */
static int activated(const struct handed *handed)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct attnd_fault fault = {0};
        struct attnd_listen listener = {.fd = -1};
        char pid[16], name[108];

        put_in_place(handed);
        snprintf(pid, sizeof(pid), "%d", (int)getpid() + handed->of_another);
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", handed->fds, 1);
        int rc = attnd_activate(&listener, name, sizeof(name), &fault);
        if (getenv("LISTEN_PID") || getenv("LISTEN_FDS"))
            _exit(103);
        if (rc == 1 && (listener.fd != 3 || !listener.inherited || strcmp(name, socket_path) != 0 ||
                        !(fcntl(3, F_GETFD) & FD_CLOEXEC) || !(fcntl(3, F_GETFL) & O_NONBLOCK)))
            _exit(104);
        if (rc == -ATTND_E_RANGE && (fault.value != 2 || fault.limit != 1))
            _exit(105);
        _exit(rc < 0 ? -rc : 200 + rc);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    (void)unlink(socket_path);
    return WEXITSTATUS(status);
}

static void a_listening_socket_is_taken_with_its_path(void **state)
{
    (void)state;
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 1, 1, "1", 0}), 201);
}

static void what_is_for_another_process_or_nothing_is_left_alone(void **state)
{
    (void)state;
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 1, 1, "1", 1}), 200);
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 1, 1, "0", 0}), 200);
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 1, 1, "x", 0}), 200);
}

static void what_the_service_could_not_serve_on_is_refused(void **state)
{
    (void)state;
    assert_int_equal(activated(&(struct handed){SOCK_STREAM, 1, 1, "1", 0}), ATTND_E_INVALID);
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 1, 0, "1", 0}), ATTND_E_INVALID);
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 0, 1, "1", 0}), ATTND_E_INVALID);
    assert_int_equal(activated(&(struct handed){0, 0, 0, "1", 0}), ATTND_E_INVALID);
    assert_int_equal(activated(&(struct handed){SOCK_SEQPACKET, 1, 1, "2", 0}), ATTND_E_RANGE);
}

static void the_file_of_an_inherited_socket_is_not_touched(void **state)
{
    struct attnd_listen made, inherited;
    struct attnd_fault fault = {0};
    struct stat file;

    (void)state;
    assert_int_equal(attnd_listen_open(socket_path, 0640, &made, &fault), 0);
    inherited = made;
    inherited.inherited = 1;
    assert_int_equal(attnd_listen_mode(&inherited, socket_path, 0600), 0);
    attnd_listen_unlink(&inherited, socket_path);
    assert_int_equal(stat(socket_path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0640);
    attnd_listen_unlink(&made, socket_path);
    assert_int_equal(stat(socket_path, &file), -1);
    close(made.fd);
}

static void the_default_directory_is_made_once_and_not_its_parents(void **state)
{
    char directory[64], deep[96];
    struct stat file;

    (void)state;
    snprintf(directory, sizeof(directory), "%s/attnd", socket_folder);
    snprintf(deep, sizeof(deep), "%s/attnd/sock", socket_folder);
    assert_int_equal(attnd_listen_directory(deep), 0);
    assert_int_equal(attnd_listen_directory(deep), 0);
    assert_int_equal(stat(directory, &file), 0);
    assert_true(S_ISDIR(file.st_mode));
    assert_int_equal(rmdir(directory), 0);
    snprintf(deep, sizeof(deep), "%s/not/there/sock", socket_folder);
    assert_int_equal(attnd_listen_directory(deep), -ATTND_E_SYSTEM);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, socket_folder_make, socket_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_listening_socket_is_taken_with_its_path),
        CASE(what_is_for_another_process_or_nothing_is_left_alone),
        CASE(what_the_service_could_not_serve_on_is_refused),
        CASE(the_file_of_an_inherited_socket_is_not_touched),
        CASE(the_default_directory_is_made_once_and_not_its_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
