/* The protocol of comm/internal/succession.h, for spin. Its steps have the names of the code's.
 *
 * -DRANKS=3 ranks, -DKILLS=1 that may die, -DCUTS=1 times that the network may be cut in two anew (or
 * healed), -DLOST=0 times that a living, linked rank is not heard in time.
 * A frame arrives at once or is never sent (a newer one replaces it); up to -DLATE=1 are on their way
 * at a time and arrive at any time, also after a cut or their sender's death.
 * -DCUT_FIRST: they are cut in two before they begin.
 *
 * Wrong rules, which must be found:
 * -DOLD_RULE      a decision counts at once, and as the base of the next, with nobody's confirmation
 * -DUNBOUND       what a member has confirmed binds it to nothing once it has left
 * -DLATER_BINDS   a member follows no group that was begun before one that it has confirmed, though
 *                 all others of that one are dead
 *
 * A run begins when all have called rebuild() and heard of each other. Checked: there are never two
 * groups of one base that worked, with living members (begin_group() in succession_steps.h). Where
 * nothing happens any more, ranks that reach each other have a group if they are enough of the newest
 * base that one of them has, and none has confirmed a group with half of its members elsewhere
 * (at_peace_is_right() in succession_faults.h).
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef LATE
#define LATE 1
#endif
#ifndef LOST
#define LOST 0
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 8 /* attempts */
#endif

byte can[RANKS];      /* bits of steps it can take now: CONNECT... in succession_faults.h */
byte can_hear[RANKS], can_notice[RANKS], can_find_gone[RANKS]; /* bits of ranks: news of them */

byte alive[RANKS];    /* 1 until it dies */
byte side[RANKS];     /* ranks on one side reach each other */
byte vote[RANKS];
byte base[RANKS];     /* 0: the first group; a + 1: attempt a */
byte follow[RANKS];   /* whom, by this vote */
byte joined[RANKS];   /* 1 in rebuild() */
byte out[RANKS];      /* it has been told that others went on */
byte current[RANKS];  /* a + 1: connecting or confirmed */
byte confirmed[RANKS];
byte pending[RANKS];  /* bits of attempts */
byte gone[RANKS];     /* bits of ranks that it knows to be dead */
byte silent[RANKS];   /* bits of ranks of which it has heard nothing for too long */
byte cut_off[RANKS];  /* bits of ranks that could not reach it at some time since it heard them */
byte refused[RANKS];  /* bits of dead ranks whose machine it could ask */

byte worked;      /* bits of attempts that were groups with all their members */
byte attempts = 0;
byte a_base[ATTEMPTS], a_leader[ATTEMPTS], a_members[ATTEMPTS];
byte a_vote[ATTEMPTS * RANKS];

int known[RANKS * RANKS];   /* what i has heard of j, at i * RANKS + j; see status() */
int flying[RANKS * RANKS];  /* the frame on its way from j to i; 0: none */
byte kills = KILLS, cuts = CUTS, late = LATE, lost = LOST;

c_code {
\#include "succession_faults.h"
};

proctype rank(byte i) {
end:
  do
  :: d_step { c_expr { CAN_CONNECT } -> c_code { connects(Prank->i); settle(); } }
  :: d_step { c_expr { CAN_FAIL } -> c_code { fails(Prank->i); settle(); } }
  :: d_step { c_expr { CAN_BEGIN } -> c_code { begins(Prank->i); settle(); } }
  :: d_step { c_expr { CAN_DIE } -> c_code { now.kills--; kill_rank(Prank->i); settle(); } }
  od
}

/* From j to i */
proctype wire(byte i; byte j) {
end:
  do
  :: d_step { c_expr { CAN_SEND } -> c_code { arrives(Pwire->i, Pwire->j, status(Pwire->j)); settle(); } }
  :: d_step { c_expr { CAN_SEND_LATE } -> c_code {
       now.late--;
       now.flying[Pwire->i * RANKS + Pwire->j] = status(Pwire->j); settle(); } }
  :: d_step { c_expr { CAN_ARRIVE } -> c_code {
       int s = now.flying[Pwire->i * RANKS + Pwire->j];
       now.flying[Pwire->i * RANKS + Pwire->j] = 0;
       now.late++;
       arrives(Pwire->i, Pwire->j, s); settle(); } }
  :: d_step { c_expr { CAN_VANISH } -> c_code {
       now.flying[Pwire->i * RANKS + Pwire->j] = 0;
       now.late++; settle(); } }
  :: d_step { c_expr { CAN_NOTICE } -> c_code { notices(Pwire->i, Pwire->j); settle(); } }
  :: d_step { c_expr { CAN_MISS } -> c_code { now.lost--; notices(Pwire->i, Pwire->j); settle(); } }
  :: d_step { c_expr { CAN_FIND_GONE } -> c_code { finds_gone(Pwire->i, Pwire->j); settle(); } }
  od
}

/* The network is cut so that these are on their own */
proctype network(byte these) {
end:
  do
  :: d_step { c_expr { CAN_CUT } -> c_code { now.cuts--; cut(Pnetwork->these); settle(); } }
  od
}

init {
  byte i = 0, j;
  atomic {
    do
    :: i < RANKS -> alive[i] = 1; joined[i] = 1; follow[i] = i; vote[i] = 1; run rank(i); j = 0;
       do
       :: j < RANKS -> if :: i != j -> run wire(i, j) :: else fi; j++
       :: else -> break
       od; i++
    :: else -> break
    od;
    c_code { meet(); settle(); };
#ifdef CUT_FIRST
    i = 0;
    do
    :: i < (1 << (RANKS - 1)) - 1 -> i++
    :: c_code { cut(Pinit->i << 1); settle(); }; break
    od;
#endif
    i = 0; j = 0;
    do
    :: i < 1 << (RANKS - 1) -> run network(i << 1); i++
    :: else -> i = 0; break
    od
  }
}
