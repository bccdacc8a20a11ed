/* The protocol of comm/internal/succession.h, for spin. Its steps have the names of the code's.
 *
 * -DN=3 ranks, -DKILLS=2 that may die, -DCUTS=2 times that the network may be cut in two anew (or
 * healed), -DLOST=1 times that a living, linked rank is not heard in time.
 * A frame arrives at once or is never sent (a newer one replaces it); up to -DLATE=1 are on their way at a time
 * and arrive at any time, also after a cut or their sender's death. -DOLD_RULE is the protocol as it
 * was: a decision counts at once, and as the base of the next, with nobody's confirmation.
 * -DUNBOUND is this one without its votes: what a member has confirmed binds it to nothing.
 *
 * Checked: there are never two groups of one base that worked, with living members (begin_group() in
 * succession_steps.h); where nothing
 * happens any more, ranks that reach each other, are enough of the newest base that one of them has and
 * have confirmed no group with half of its members elsewhere have a group (at_peace_is_right()).
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

byte worked;      /* bits of attempts that were groups with all their members */
byte attempts = 0;
byte a_base[ATTEMPTS], a_leader[ATTEMPTS], a_members[ATTEMPTS];
byte a_vote[ATTEMPTS * RANKS];

int known[RANKS * RANKS];   /* what i has heard of j, at i * RANKS + j; see status() */
int flying[RANKS * RANKS];  /* the frame on its way from j to i; 0: none */
byte kills = KILLS, cuts = CUTS, late = LATE, lost = LOST, quiet = 0;

c_code {
\#include "succession_steps.h"
};

proctype rank(byte i) {
end:
  do
  :: d_step { c_expr { CAN_JOIN } -> c_code { take_vote(Prank->i, leader_for(Prank->i));  } }
  :: d_step { c_expr { CAN_DECIDE } -> c_code { decide(Prank->i);  } }
  :: d_step { c_expr { CAN_DECIDE_EARLY } -> c_code { now.lost--; decide(Prank->i);  } }
  :: d_step { c_expr { CAN_BEGIN } -> c_code { now.joined[Prank->i] = 1; take_vote(Prank->i, Prank->i);  } }
#ifdef OLD_RULE
  :: d_step { c_expr { IS_TOLD } -> c_code { adopt(Prank->i, told(Prank->i) - 1);  } }
  :: d_step { c_expr { CAN_CONNECT } -> c_code {
          now.current[Prank->i] = now.joined[Prank->i] = 0;
          begin_group(Prank->i);  } }
  :: d_step { c_expr { CAN_LEAVE } -> c_code { now.current[Prank->i] = 0; take_vote(Prank->i, Prank->i);  } }
#else
  :: d_step { c_expr { IS_TOLD } -> c_code { now.current[Prank->i] = told(Prank->i);  } }
  :: d_step { c_expr { CAN_CONFIRM } -> c_code {
          now.confirmed[Prank->i] = 1;
          now.pending[Prank->i] |= BIT(now.current[Prank->i] - 1);  } }
  :: d_step { c_expr { CAN_GO } -> c_code { adopt(Prank->i, now.current[Prank->i] - 1);  } }
  :: d_step { c_expr { CAN_LEAVE } -> c_code { leave(Prank->i);  } }
  :: d_step { c_expr { CAN_LEAVE_EARLY } -> c_code { now.lost--; leave(Prank->i);  } }
#endif
  od
}

/* From j to i */
proctype wire(byte i; byte j) {
end:
  do
  :: d_step { c_expr { CAN_SEND } -> c_code { arrives(Pwire->i, Pwire->j, status(Pwire->j)); } }
  :: d_step { c_expr { CAN_SEND_LATE } -> c_code {
          now.late--;
          now.flying[Pwire->i * RANKS + Pwire->j] = status(Pwire->j);  } }
  :: d_step { c_expr { CAN_ARRIVE } -> c_code {
          int s = now.flying[Pwire->i * RANKS + Pwire->j];
          now.late++;
          now.flying[Pwire->i * RANKS + Pwire->j] = 0;
          arrives(Pwire->i, Pwire->j, s);  } }
  :: d_step { c_expr { CAN_VANISH } -> c_code {
          now.late++;
          now.flying[Pwire->i * RANKS + Pwire->j] = 0;  } }
  :: d_step { c_expr { CAN_FIND_GONE } -> c_code {
          now.gone[Pwire->i] |= BIT(Pwire->j);  } }
  od
}

proctype faults() {
  byte k;
end:
  do
  :: d_step { cuts > 0 && !quiet -> cuts--; k = 0 };
     do
     :: k < (1 << (RANKS - 1)) - 1 -> k++
     :: d_step { c_code { cut(Pfaults->k << 1); }; k = 0 }; break
     od
  :: d_step { kills > 0 && !quiet -> kills--; k = 0 };
     do
     :: k < RANKS - 1 -> k++
     :: d_step { c_code { now.alive[Pfaults->k] = 0; }; k = 0 }; break
     od
  :: d_step { !quiet -> quiet = 1; cuts = 0; kills = 0; lost = 0 }
  od
}

proctype monitor() {
  timeout -> c_code { int went_on = at_peace_is_right(); if (!went_on) show(); require(went_on); }
}

init {
  byte i = 0, j;
  atomic {
    do
    :: i < RANKS -> alive[i] = 1; joined[i] = 1; follow[i] = i; run rank(i); j = 0;
       do
       :: j < RANKS -> if :: i != j -> run wire(i, j) :: else fi; j++
       :: else -> break
       od; i++
    :: else -> break
    od;
    run faults(); run monitor()
  }
}
