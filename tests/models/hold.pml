/*
 * hold.pml - sets, unprepare and the release of memory against runs that a doorbell has begun
 * (service/prepared/control_command.c, restart.c; persistent/cuda/dispatch/control.cuh).
 *
 * The engine rings whenever its lane rests, also when the run is gone. The daemon sets the plan, of
 * two words, ends the run and frees what it wrote to. It never sees a ring: it has the worker's
 * acks. The worker may die between any two of its steps; then every ack that is missing counts as
 * given, and the next one is sent what there is, the run before the mailbox.
 *
 * Always: a run reads a plan that nobody writes, and is newer than the last set that is complete
 * when it is rung; none writes to memory that is free; a run that is there is not refused as
 * unknown; and nobody waits for ever.
 *
 * breaks: NO_HOLD EARLY_ACK NO_WAIT MAILBOX_FIRST SEND_CHANGING NO_ADOPT
 */
#define SETS 2
#define RINGS 3
#define DEATHS 2

#define RUNG 3
#define TAKEN 0
#define DONE 1
#define REFUSED 2         /* there is no such run, or its worker died */

mtype = { PREPARED, EMPTY, HOLD, PUBLISH, WATCH };

byte doorbell = DONE;
byte plan[2];             /* which set's */
byte complete;            /* the last set whose completion the engine has */
byte wanted;              /* that one when the run was rung */
bool freed, ended;
bool rings_over;

chan commands = [4] of { mtype };
chan acks = [4] of { mtype };
bool lost = true;         /* there is no worker: the daemon makes one */
byte deaths;

/* ---- the engine ---- */

active proctype engine()
{
    byte rings;
    do
    :: rings == RINGS -> break
    :: else ->
        rings++;
        wanted = complete;
        doorbell = RUNG;
        (doorbell == DONE || doorbell == REFUSED)
    od;
    rings_over = true
}

/* ---- the worker ---- */

bool there, watched, held, owes_hold, owes_empty;
byte step, first;

active proctype worker()
{
end:
    do
    :: atomic { deaths < DEATHS && !lost -> /* the next one knows nothing */
        deaths++; lost = true;
        there = false; watched = false; held = false; owes_hold = false; owes_empty = false;
        step = 0;
        do :: commands?_ :: acks?_ :: empty(commands) && empty(acks) -> break od }
    :: atomic { watched && doorbell == RUNG && !there -> assert(ended); doorbell = REFUSED }
    :: atomic { watched && doorbell == RUNG && there && !held && step == 0 ->
        doorbell = TAKEN; step = 1 }
    :: atomic { step == 1 -> first = plan[0]; step = 2 }
    :: atomic { step == 2 -> assert(first == plan[1] && first >= wanted); step = 3 }
    :: atomic { step == 3 -> assert(!freed); doorbell = DONE; step = 0 }
    :: atomic { commands?PREPARED ->
        assert(plan[0] == plan[1]);         /* it looks at the plan */
        there = true; acks!PREPARED }
    :: atomic { commands?EMPTY -> there = false; owes_empty = true }
#ifdef EARLY_ACK
    :: atomic { commands?HOLD -> held = true; acks!HOLD }
#else
    :: atomic { commands?HOLD -> held = true; owes_hold = true }
#endif
    :: atomic { owes_hold && step == 0 -> owes_hold = false; acks!HOLD }
#ifdef NO_WAIT
    :: atomic { owes_empty -> owes_empty = false; acks!EMPTY }
#else
    :: atomic { owes_empty && step == 0 -> owes_empty = false; acks!EMPTY }
#endif
    :: atomic { commands?PUBLISH -> held = false; acks!PUBLISH }
    :: atomic { commands?WATCH ->
#ifndef NO_ADOPT
        if :: doorbell == TAKEN && step == 0 -> doorbell = REFUSED :: else fi;
#endif
        watched = true; acks!WATCH }
    od
}

/* ---- the daemon ---- */

bool owed;                /* the run and the mailbox, which wait for the end of a set */

/* To a dead one: it is as good as acked. */
inline send(what)
{
    atomic { if :: lost :: else -> commands!what fi }
}

/* The next worker; in the middle of a set it may not look at the plan. */
inline resume(changing)
{
    if
    :: atomic { lost -> lost = false; owed = true }
    :: else
    fi;
#ifdef SEND_CHANGING
    if
    :: owed ->
#else
    if
    :: owed && !changing ->
#endif
        owed = false;
#ifdef MAILBOX_FIRST
        send(WATCH);
#endif
        if :: !ended -> send(PREPARED) :: else fi;
#ifndef MAILBOX_FIRST
        send(WATCH)
#endif
    :: else
    fi
}

/* For the ack of what was sent, or until it counts as given. Other acks are of a resume. */
inline await(what)
{
    mtype got;
    do
    :: acks?got ->
        if :: got == what -> break :: else fi
    :: lost -> break
    od
}

active proctype daemon()
{
    byte set;
    do
    :: set == SETS -> break
    :: else ->
        set++;
        resume(false);
#ifndef NO_HOLD
        send(HOLD);
        await(HOLD);
#endif
        plan[0] = set;
        resume(true);
        plan[1] = set;
        resume(false);
        send(PUBLISH);
        await(PUBLISH);
        complete = set
    od;
    ended = true;
    resume(false);
    send(EMPTY);
    await(EMPTY);
    freed = true;
end:
    do
    :: acks?_
    :: atomic { lost -> resume(false) }
    od
}
