/*
 * wake.pml - no message is lost between a waker and a sleeper (ipc/wake.c).
 *
 * A store stays in a buffer of its processor until it is flushed, at any time; a load reads memory.
 * That is what lets a store and a later load of another word change places. A full fence waits for
 * the buffer. The kernel is given no fence of its own: it compares the word and puts the thread to
 * sleep in one step, and that is all it does.
 *
 * A message is lost when the sleeper sleeps although the tail has moved and no wake is on its way.
 * Then nothing can happen any more, which the verifier reports as an invalid end state.
 *
 * breaks: NO_F1 NO_F2 NO_COMPARE
 */
#define MESSAGES 3

byte tail, need;                       /* in memory */
bool tail_waits, need_waits;           /* a store is in the buffer */
byte tail_next, need_next;             /* what it stores */
bool asleep;

active proctype memory()
{
end:
    do
    :: atomic { tail_waits -> tail = tail_next; tail_waits = false }
    :: atomic { need_waits -> need = need_next; need_waits = false }
    od
}

inline store_tail(value) { atomic { !tail_waits -> tail_next = value; tail_waits = true } }
inline store_need(value) { atomic { !need_waits -> need_next = value; need_waits = true } }

active proctype waker()
{
    byte sent = 0, saw;
    do
    :: sent < MESSAGES ->
        sent++;
        store_tail(sent);              /* R1 */
#ifndef NO_F2
        !tail_waits;                   /* F2 */
#endif
        saw = need;
        if
        :: saw -> asleep = false       /* FUTEX_WAKE */
        :: else
        fi
    :: else -> break
    od
}

active proctype sleeper()
{
    byte head = 0, saw;
    do
    :: head == MESSAGES -> break
    :: else ->
        store_need(1);
#ifndef NO_F1
        !need_waits;                   /* F1 */
#endif
        saw = tail;
        if
        :: saw == head ->
#ifndef NO_COMPARE
            atomic {                   /* FUTEX_WAIT: sleeps only if the word is still what was seen */
                if
                :: tail == saw -> asleep = true
                :: else
                fi
            }
#else
            asleep = true;
#endif
            !asleep
        :: else
        fi;
        store_need(0);
        head = tail
    od
}
