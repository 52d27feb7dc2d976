/*
 * handover.pml - a page goes from one service to another (service/peers/transfer.c, give.c).
 *
 * One ticket of one page, a claimer, its worker that copies the page whenever it likes, and a link
 * that either side may take for dead at any time, at a time of its own: what the other one has sent
 * until then may still be read, and what is sent after that is lost. The claim may be cancelled at
 * any time. A ticket that is not lent may be claimed by another session of the giver, or expire; its
 * page there is then written by somebody else.
 *
 * Always: bytes come to a page here only while it is the transfer's; a claim that succeeds has the
 * right bytes; nobody else has claimed the ticket then; and when nothing can happen any more no page
 * is the transfer's and no ticket is lent. The third process of a link, its death, is the same for
 * the other side as one that is silent.
 *
 * breaks: USE_BEFORE_GIVEN FREE_WHILE_WRITTEN GIVE_WITHOUT_LEASE LEND_AND_CLAIM KEEP_WHEN_DOWN
 */
mtype = { TAKE, GRANT, REFUSE, DONE, GIVEN, DROP };
mtype = { NOBODY, TRANSFER, SESSION, OTHER };

#define RIGHT 1
#define WRONG 2

chan to_giver = [4] of { mtype };
chan to_claimer = [4] of { mtype };
bool down_there, down_here;       /* a side has hung up */

byte bytes_there = RIGHT;
bool lent, gone;                  /* the ticket: lent; claimed by another, expired or spent */
bool claimed_there;

mtype owner = NOBODY;             /* of the page here */
byte bytes_here;
bool piece;                       /* the worker has one */
bool over, succeeded;

inline tell_giver(what)
{
    if
    :: !down_here && !down_there -> to_giver!what
    :: else
    fi
}

inline tell_claimer(what)
{
    if
    :: !down_here && !down_there -> to_claimer!what
    :: else
    fi
}

active proctype giver()
{
    mtype what;
end:
    do
    :: atomic { to_giver?what ->
        if
        :: down_there                     /* it reads nothing more */
        :: !down_there && what == TAKE ->
            if
            :: !gone && !lent -> lent = true; tell_claimer(GRANT)
            :: else -> tell_claimer(REFUSE)
            fi
        :: !down_there && what == DONE ->
            if
#ifdef GIVE_WITHOUT_LEASE
            :: true -> lent = false; gone = true; tell_claimer(GIVEN)
#else
            :: lent -> lent = false; gone = true; bytes_there = WRONG; tell_claimer(GIVEN)
            :: !lent -> tell_claimer(REFUSE)
#endif
            fi
        :: !down_there && what == DROP -> lent = false
        fi }
    :: atomic { !down_there ->            /* it hears nothing, or sees the other one go */
        down_there = true;
#ifndef KEEP_WHEN_DOWN
        lent = false
#endif
        }
    :: atomic { !down_there && lent -> lent = false }   /* a claimer that does not come to an end */
    od
}

/* Another session of the giver, or the end of the ticket's time. */
active proctype another()
{
end:
#ifdef LEND_AND_CLAIM
    atomic { !gone -> gone = true; claimed_there = true; bytes_there = WRONG }
#else
    atomic { !gone && !lent -> gone = true; claimed_there = true; bytes_there = WRONG }
#endif
}

active proctype worker()
{
    byte read;
end:
    do
    :: piece ->
        read = bytes_there;
        atomic {
            assert(owner == TRANSFER);
            bytes_here = read;
            piece = false
        }
    od
}

active proctype claimer()
{
    mtype what;
    bool asked, granted, landed;

    tell_giver(TAKE);
    asked = true;
    do
    :: over -> break
    :: atomic { !over && nempty(to_claimer) -> to_claimer?what;
        if
        :: what == GRANT -> granted = true; owner = TRANSFER; piece = true
        :: what == REFUSE -> over = true
        :: what == GIVEN -> over = true; succeeded = true
        fi }
    :: atomic { !over && granted && !piece && !landed -> landed = true;
#ifdef USE_BEFORE_GIVEN
        over = true; succeeded = true;
#endif
        tell_giver(DONE) }
    :: atomic { !over && !down_here && down_there && empty(to_claimer) ->
        down_here = true; over = true }   /* it reads the end behind all that came before */
    :: atomic { !over && !down_here -> down_here = true; over = true }
    :: atomic { !over -> over = true; tell_giver(DROP) }          /* cancelled */
    od;
    if
    :: succeeded ->
        assert(bytes_here == RIGHT);
        assert(!claimed_there);
        owner = SESSION
    :: !succeeded && owner == TRANSFER ->
#ifndef FREE_WHILE_WRITTEN
        !piece;
#endif
        owner = NOBODY;
        owner = OTHER
    :: else
    fi
}

/* When nothing else happens. */
active proctype balance()
{
end:
    timeout;
    assert(over && owner != TRANSFER);
    assert(!lent)
}
