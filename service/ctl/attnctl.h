/*
 * attnctl.h - the parts of attnctl: commands, the question to the daemon, and ways to print the
 * answer. A new command is a function here and a line in main_attnctl.c.
 */
#ifndef ATTND_SERVICE_CTL_ATTNCTL_H
#define ATTND_SERVICE_CTL_ATTNCTL_H

#include "ipc/socket_path.h"
#include "schemas/attnd.pb-c.h"
#include "schemas/errors.h"

#include <argp.h>
#include <stdio.h>

/* Exit codes of attnctl, printed by --help. */
enum attnctl_exit {
    ATTNCTL_EXIT_OK = 0,
    ATTNCTL_EXIT_USAGE = 1,
    ATTNCTL_EXIT_UNREACHABLE = 2,
    ATTNCTL_EXIT_ANSWER = 4,
    ATTNCTL_EXIT_UNWELL = 5 /* doctor: something FAILs */
};

/* Options of every command. */
struct attnctl_options {
    const char *socket_path;
    int json;
};
#define ATTNCTL_KEY_JSON 'j'
#define ATTNCTL_KEY_SOCKET 's'
#define ATTNCTL_SOCKET_OPTION                                                                      \
    {                                                                                              \
        "socket", ATTNCTL_KEY_SOCKET, "PATH", 0,                                                   \
            "The service's socket (default: " ATTND_SOCKET_RULE                                    \
            "; of two that are there a user's own)",                                               \
            0                                                                                      \
    }

/** attnctl_parse_option() - argp's parser of them; input: struct attnctl_options. */
error_t attnctl_parse_option(int key, char *text, struct argp_state *state);

/** attnctl_parse_common() - the same from within a command's own parser. */
error_t attnctl_parse_common(int key, char *text, struct argp_state *state,
                             struct attnctl_options *options);

/** attnctl_parse_with() - argp_parse() with attnctl's exit status of a wrong command line.
 * @input: of the parser. */
void attnctl_parse_with(const struct argp *parser, int argc, char **argv, void *input);

/**
 * attnctl_parse_numbers() - the command line of a command that takes a session's number, maybe
 * others behind it, and no option of its own
 * @names:  of the numbers, as --help shows them, such as "SESSION N"
 * @number: [@count], all of them given; set
 */
struct attnctl_options attnctl_parse_numbers(int argc, char **argv, const char *names,
                                             const char *doc, uint32_t *number, unsigned count);

/**
 * attnctl_parse() - the command line of a command that has no option of its own
 * @json: the help of --json; NULL: it has none
 * @doc:  what it does
 */
struct attnctl_options attnctl_parse(int argc, char **argv, const char *json, const char *doc);

/** attnctl_status()/...() - the commands: argv[0] is the name. Return: the exit code. */
enum attnctl_exit attnctl_status(int argc, char **argv);
enum attnctl_exit attnctl_top(int argc, char **argv);
enum attnctl_exit attnctl_ping(int argc, char **argv);
enum attnctl_exit attnctl_latency(int argc, char **argv);
enum attnctl_exit attnctl_metrics(int argc, char **argv);
enum attnctl_exit attnctl_monitor(int argc, char **argv);
enum attnctl_exit attnctl_trace(int argc, char **argv);
enum attnctl_exit attnctl_kill(int argc, char **argv);
enum attnctl_exit attnctl_weight(int argc, char **argv);
enum attnctl_exit attnctl_prefix(int argc, char **argv);
enum attnctl_exit attnctl_peers(int argc, char **argv);
enum attnctl_exit attnctl_doctor(int argc, char **argv);

/**
 * attnctl_ask() - one call without a session
 * @socket_path: NULL for the default
 * @reply: freed by attnd__reply__free_unpacked(); its code may be negative
 * Blocks for at most 5 s. Return: 0; -ATTND_E_INVALID no path is known; -ATTND_E_DISCONNECTED
 * nobody listens there, or answers (errno says why); -ATTND_E_PROTOCOL the answer makes no sense;
 * -ATTND_E_SYSTEM.
 */
int attnctl_ask(const char *socket_path, Attnd__Request *request, Attnd__Reply **reply);

/**
 * attnctl_explain() - why attnctl_ask() failed, and which path it tried
 * @code: what it returned; errno is as it left it
 * Return: the exit code for that.
 */
enum attnctl_exit attnctl_explain(FILE *out, const char *socket_path, int code);

/** attnctl_refused() - the service's own reason, of a reply whose code is negative.
 * Return: the exit code for that. */
enum attnctl_exit attnctl_refused(FILE *out, const Attnd__Reply *reply);

/**
 * attnctl_ask_for() - ask, and explain on standard error what went wrong
 * @call, @message: the call, and its own message
 * @wanted: the result that the reply must have; ATTND__REPLY__RESULT__NOT_SET: none
 * @reply:  of ATTNCTL_EXIT_OK; freed by attnd__reply__free_unpacked()
 * Return: the exit code.
 */
enum attnctl_exit attnctl_ask_for(const char *socket_path, Attnd__Request__CallCase call,
                                  void *message, Attnd__Reply__ResultCase wanted,
                                  Attnd__Reply **reply);
/** attnctl_ask_done() - the same for a call whose reply has no result. */
enum attnctl_exit attnctl_ask_done(const char *socket_path, Attnd__Request__CallCase call,
                                   void *message);
/** attnctl_ask_status() - the same for the status. */
enum attnctl_exit attnctl_ask_status(const char *socket_path, Attnd__Reply **reply);

/** attnctl_print_findings() - of the doctor, for people or as one JSON object.
 * Return: 0; -ATTND_E_SYSTEM. */
struct attnd_finding;
int attnctl_print_findings(FILE *out, const struct attnd_finding *findings, uint32_t count,
                           int json);

/** attnctl_bytes() - into a few letters: "1.5 GiB". Return: @text. */
const char *attnctl_bytes(uint64_t bytes, char *text, size_t text_bytes);

/** attnctl_print_event() - a line for people. @offset_ns: of the daemon's clock to the time of day.
 */
void attnctl_print_event(FILE *out, const Attnd__MonitorEvent *event, int64_t offset_ns);

/** attnctl_print_prefix() - for people. */
void attnctl_print_prefix(FILE *out, const Attnd__PrefixStatus *status);
/** attnctl_print_peers() - for people. */
void attnctl_print_peers(FILE *out, const Attnd__Status *status);
/** attnctl_time_text() - into a few letters: "1.5 ms"; "-" for 0. Return: @text. */
const char *attnctl_time_text(uint64_t ns, char *text, size_t text_bytes);

/** attnctl_print_status() - for people. */
void attnctl_print_status(FILE *out, const Attnd__Status *status);

#endif
