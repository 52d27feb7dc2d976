/*
 * test_attnctl_ask.c - one question, one answer, from a service that is not always a good one. What
 * is not here: one that never answers, which takes attnctl's five seconds.
 */
#include "ipc/fdpass.h"
#include "service/ctl/attnctl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

/* How the service answers. */
enum manner { RIGHT, OTHER_QUESTION, NONSENSE, HANGS_UP, WITH_DESCRIPTORS };

static struct {
    char directory[32], path[64];
    int listener;
    enum manner manner;
    uint64_t asked; /* the id of the question */
    pthread_t thread;
    Attnd__Reply *reply;
} rig;

static int count_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void answer(int peer, uint64_t id)
{
    uint8_t bytes[256];
    Attnd__Reply reply = ATTND__REPLY__INIT;
    const int fds[] = {0, 1};
    reply.id = id;
    reply.code = -ATTND_E_BUSY;
    size_t size_bytes = attnd__reply__pack(&reply, bytes);
    if (rig.manner == NONSENSE)
        memset(bytes, 0xff, size_bytes);
    (void)attnd_fdpass_send(peer, bytes, size_bytes, fds, rig.manner == WITH_DESCRIPTORS ? 2 : 0);
}

static void *serve(void *context)
{
    uint8_t bytes[4096];
    (void)context;
    int peer = accept(rig.listener, NULL, NULL);
    ssize_t got = recv(peer, bytes, sizeof(bytes), 0);
    Attnd__Request *request = attnd__request__unpack(NULL, got > 0 ? (size_t)got : 0, bytes);
    if (request) {
        rig.asked = request->id;
        if (rig.manner != HANGS_UP)
            answer(peer, request->id + (rig.manner == OTHER_QUESTION));
        attnd__request__free_unpacked(request, NULL);
    }
    close(peer);
    return NULL;
}

static int setup(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)state;
    memset(&rig, 0, sizeof(rig));
    strcpy(rig.directory, "/tmp/attnd-ask-XXXXXX");
    if (!mkdtemp(rig.directory))
        return -1;
    snprintf(rig.path, sizeof(rig.path), "%s/sock", rig.directory);
    memcpy(address.sun_path, rig.path, strlen(rig.path) + 1);
    rig.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return bind(rig.listener, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
           listen(rig.listener, 1) < 0;
}

static int teardown(void **state)
{
    (void)state;
    if (rig.reply)
        attnd__reply__free_unpacked(rig.reply, NULL);
    close(rig.listener);
    unlink(rig.path);
    return rmdir(rig.directory);
}

static int ask(const char *path)
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    rig.reply = (Attnd__Reply *)(uintptr_t)1;
    int rc = attnctl_ask(path, &request, &rig.reply);
    assert_true((rig.reply != NULL) == (rc == 0));
    return rc;
}

static int ask_one_that(enum manner manner)
{
    rig.manner = manner;
    assert_int_equal(pthread_create(&rig.thread, NULL, serve, NULL), 0);
    int rc = ask(rig.path), error = errno;
    assert_int_equal(pthread_join(rig.thread, NULL), 0);
    errno = error;
    return rc;
}

static void the_answer_is_the_callers_whatever_it_says(void **state)
{
    (void)state;
    assert_int_equal(ask_one_that(RIGHT), 0);
    assert_int_equal(rig.reply->id, rig.asked);
    assert_int_equal(rig.reply->code, -ATTND_E_BUSY);
}

static void an_answer_to_another_question_is_none(void **state)
{
    (void)state;
    assert_int_equal(ask_one_that(OTHER_QUESTION), -ATTND_E_PROTOCOL);
}

static void bytes_that_are_no_message_are_no_answer(void **state)
{
    (void)state;
    assert_int_equal(ask_one_that(NONSENSE), -ATTND_E_PROTOCOL);
}

static void a_service_that_hangs_up_is_gone(void **state)
{
    (void)state;
    assert_int_equal(ask_one_that(HANGS_UP), -ATTND_E_DISCONNECTED);
}

static void descriptors_that_come_along_are_closed(void **state)
{
    (void)state;
    int before = count_fds();
    assert_int_equal(ask_one_that(WITH_DESCRIPTORS), 0);
    assert_int_equal(count_fds(), before);
}

static void nobody_there_is_said_with_the_reason(void **state)
{
    (void)state;
    int before = count_fds();
    assert_int_equal(ask("/nowhere/sock"), -ATTND_E_DISCONNECTED);
    assert_int_equal(errno, ENOENT);
    close(rig.listener);
    assert_int_equal(ask(rig.path), -ATTND_E_DISCONNECTED);
    assert_int_equal(errno, ECONNREFUSED);
    rig.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(count_fds(), before);
}

static void a_path_that_is_no_socket_address_is_refused(void **state)
{
    char path[200];
    (void)state;
    memset(path, 'x', sizeof(path));
    path[108] = '\0'; /* one more than an address holds with its end */
    assert_int_equal(ask(path), -ATTND_E_INVALID);
    assert_int_equal(ask(""), -ATTND_E_INVALID);
    path[108] = 'x';
    path[199] = '\0';
    setenv("ATTND_SOCKET", path, 1);
    assert_int_equal(ask(NULL), -ATTND_E_INVALID);
    unsetenv("ATTND_SOCKET");
}

static void without_a_path_the_environment_has_it(void **state)
{
    (void)state;
    setenv("ATTND_SOCKET", rig.path, 1);
    rig.manner = RIGHT;
    assert_int_equal(pthread_create(&rig.thread, NULL, serve, NULL), 0);
    int rc = ask(NULL);
    assert_int_equal(pthread_join(rig.thread, NULL), 0);
    unsetenv("ATTND_SOCKET");
    assert_int_equal(rc, 0);
}

static void a_refusal_leaves_no_answer_behind(void **state)
{
    Attnd__Reply *reply = NULL;
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    (void)state;
    rig.manner = RIGHT; /* BUSY */
    assert_int_equal(pthread_create(&rig.thread, NULL, serve, NULL), 0);
    enum attnctl_exit code = attnctl_ask_for(rig.path, ATTND__REQUEST__CALL_STATUS, &query,
                                             ATTND__REPLY__RESULT_STATUS, &reply);
    assert_int_equal(pthread_join(rig.thread, NULL), 0);
    assert_int_equal(code, ATTNCTL_EXIT_ANSWER);
    assert_null(reply); /* freed: whoever frees what he was given must not free it again */
}

static void a_trace_is_refused_by_the_user_that_may(void **state)
{
    char text[128] = "";
    Attnd__Reply reply = ATTND__REPLY__INIT;
    FILE *out = fmemopen(text, sizeof(text), "w");
    (void)state;
    reply.code = -ATTND_E_PERMISSION;
    reply.field = ATTND_F_DAEMON_UID;
    reply.value = 42;    /* the service's */
    reply.limit = 65533; /* the asker's */
    assert_non_null(out);
    assert_int_equal(attnctl_refused(out, &reply), ATTNCTL_EXIT_ANSWER);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "attnctl: only root and the service's user, 42, may do this\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(the_answer_is_the_callers_whatever_it_says),
        TEST(an_answer_to_another_question_is_none),
        TEST(bytes_that_are_no_message_are_no_answer),
        TEST(a_service_that_hangs_up_is_gone),
        TEST(descriptors_that_come_along_are_closed),
        TEST(nobody_there_is_said_with_the_reason),
        TEST(a_path_that_is_no_socket_address_is_refused),
        TEST(without_a_path_the_environment_has_it),
        TEST(a_refusal_leaves_no_answer_behind),
        TEST(a_trace_is_refused_by_the_user_that_may),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
