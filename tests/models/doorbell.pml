/*
 * doorbell.pml - each launch of a lane is answered once, for itself, also if a process dies
 * (service/prepared/PROTOCOL.md; persistent/cpu/mailbox.c, persistent/cuda/dispatch/doorbells.cuh).
 *
 * The engine launches only when the lane rests. A worker may die between any two of its steps; the
 * next one begins when it is dead, and answers what it finds taken. Answers are checked: an engine
 * that reads "done" must find the result of this launch, and never waits for ever.
 *
 * breaks: NO_ADOPT ANSWER_FIRST ANSWER_TWICE
 */
#define LAUNCHES 3
#define DEATHS 2

#define TAKEN 0
#define DONE 1
#define RESTARTED 2
#define RUNG 3

byte doorbell = DONE;
byte query, result;      /* what the run reads and writes: the number of the launch */
byte deaths;
bool alive = true, over;

inline may_die()
{
    if
    :: deaths < DEATHS -> deaths++; alive = false; goto dead
    :: true
    fi
}

active proctype engine()
{
    byte launch = 0, saw;
    do
    :: launch == LAUNCHES -> break
    :: else ->
        launch++;
        query = launch;
        doorbell = RUNG;                /* R1 */
        (doorbell == DONE || doorbell == RESTARTED);
        saw = doorbell;                 /* A1 */
        if
        :: saw == DONE -> assert(result == launch)
        :: else                         /* the engine would launch it again */
        fi
    od;
    over = true
}

active proctype worker()
{
    byte input;
    do
    :: /* a worker begins: what is taken was taken by one that is dead */
        alive = true;
#ifndef NO_ADOPT
        if
        :: doorbell == TAKEN -> doorbell = RESTARTED
        :: else
        fi;
#endif
        do
        :: over -> goto finished
        :: doorbell == RUNG ->
            may_die();
#ifndef ANSWER_TWICE
            atomic { doorbell == RUNG -> doorbell = TAKEN };
            may_die();
            input = query;
#else
            input = query;
            may_die();
            doorbell = RESTARTED;
            may_die();
#endif
#ifdef ANSWER_FIRST
            doorbell = DONE;
            may_die();
            result = input
#else
            result = input;
            may_die();
            doorbell = DONE             /* R1 */
#endif
        od;
dead:
        skip
    od;
finished:
    skip
}
