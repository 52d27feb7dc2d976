/*
 * internal.h - what the files of prepared/ share. Nobody else includes it.
 */
#ifndef ATTND_SERVICE_PREPARED_INTERNAL_H
#define ATTND_SERVICE_PREPARED_INTERNAL_H

#include "service/prepared/prepared.h"

/* Has the worker a part in what becomes of @mail and its runs? Then it is told, and its ack
 * awaited. It has none where there is no worker, nor where the engine executes. */
static inline int attnd_mail_has_worker(const struct attnd_prepared_runs *prepared_runs,
                                        const struct attnd_mail *mail)
{
    return !prepared_runs->lost && !mail->by_engine;
}

/* ---- executor.c ---- */

/** attnd_executor_choose() - who executes the launched runs of a session
 * @wish: enum attnd_executor, of the session; if it has none the operator's counts
 * @mail: receives by_engine and why
 * Return: 0; -ATTND_E_UNSUPPORTED it cannot be the engine (field executor); -ATTND_E_INVALID there
 * is no such wish (field executor). */
int attnd_executor_choose(const struct attnd_service *service, uint32_t wish,
                          struct attnd_mail *mail, struct attnd_fault *fault);

/* ---- life.c ---- */

/** attnd_prepared_mail_acked(), _run_acked() - the worker acked a control command with @code; the
 * last thing that is done with the object of the command. */
void attnd_prepared_mail_acked(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail,
                               int stopped, int code);
void attnd_prepared_run_acked(struct attnd_prepared_runs *prepared_runs,
                              struct attnd_prepared *prepared, int emptied, int code);

/* ---- control_command.c ---- */

void attnd_control_command_init(struct attnd_prepared_runs *prepared_runs);
void attnd_control_command_mail(struct attnd_prepared_runs *prepared_runs, struct attnd_mail *mail);
void attnd_control_command_prepared(struct attnd_prepared_runs *prepared_runs,
                                    struct attnd_prepared *prepared);
/** attnd_control_command_plan() - HOLD or PUBLISH of a change's plan; the event acked follows. */
void attnd_control_command_plan(struct attnd_prepared_runs *prepared_runs, uint32_t kind,
                                struct attnd_plan_change *change);

/** attnd_control_command_forget() - no control command waits or is out any more. The event acked
 * follows for each HOLD and PUBLISH among them; what goes on then adds none, as the worker is lost.
 */
void attnd_control_command_forget(struct attnd_prepared_runs *prepared_runs);

/* ---- plan.c ---- */

/** attnd_prepared_join() - @prepared is of its plan from here: scratch, body. Return: 0 or a fault;
 * then nothing is changed. */
int attnd_prepared_join(struct attnd_prepared_runs *prepared_runs, struct attnd_prepared *prepared,
                        struct attnd_fault *fault);
void attnd_prepared_leave(struct attnd_prepared_runs *prepared_runs,
                          struct attnd_prepared *prepared);

/** attnd_prepared_fill() - what the run is now, into the run table.
 * Return: 1 if it differs from what the worker has. */
int attnd_prepared_fill(struct attnd_prepared_runs *prepared_runs,
                        const struct attnd_prepared *prepared);

/** attnd_prepared_changing() - the plan is held for a set that is not done: it may not be read. */
int attnd_prepared_changing(const struct attnd_plan_object *plan);

/** attnd_prepared_rescratch() - blocks again from an empty heap; runs that get none become bad. */
void attnd_prepared_rescratch(struct attnd_prepared_runs *prepared_runs,
                              struct attnd_plan_object *plan);

/** attnd_prepared_lacks() - has the worker failed to map a memory that the run names? Return: 0;
 * -ATTND_E_* with the fault of the memory. */
int attnd_prepared_lacks(const struct attnd_prepared_runs *prepared_runs,
                         const struct attnd_prepared *prepared, struct attnd_fault *fault);

#endif
