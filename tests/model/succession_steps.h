/* The steps of succession.pml, in C over its state. */
#include "succession_tidy.h"

static int frame_of(int i, int j) { /* 0 where it is of another base */
  int s = i == j ? status(i) : now.known[i * RANKS + j];
  return s && S_BASE(s) == now.base[i] ? s : 0;
}

static int is_void(int i, int a) {
  for (int m = 0; m < RANKS; ++m) {
    int s = frame_of(i, m);
    if (now.a_members[a] & BIT(m) && s && S_VOTE(s) > now.a_vote[a * RANKS + m] &&
        !(S_PENDING(s) & BIT(a))) {
      return 1;
    }
  }
  return 0;
}
static void drop_void(int i) {
  for (int a = 0; a < now.attempts; ++a) {
    if (now.pending[i] & BIT(a) && is_void(i, a)) {
      now.pending[i] &= ~BIT(a);
    }
  }
}

static void take_vote(int i, int leader) {
  now.follow[i] = leader;
  now.vote[i]++;
#ifdef OLD_RULE
  if (now.vote[i] > 15) now.vote[i] = 15; /* it may go on for ever */
#endif
  require(now.vote[i] < 16);
}
static void leave(int i) {
  int c = now.current[i];
  if (c == 0) return;
  if (now.a_leader[c - 1] == i) now.pending[i] &= ~BIT(c - 1);
  now.current[i] = now.confirmed[i] = 0;
  take_vote(i, i);
  drop_void(i);
}

/* A group works when all its members are in it. Never two that worked of one base: among the
 * living, the chains of their bases are one chain. */
static int worked_in(int j, int other_than, int same_base) {
  for (int b = now.base[j]; b != 0; b = now.a_base[b - 1]) {
    if (now.worked & BIT(b - 1) && now.a_base[b - 1] == same_base && b - 1 != other_than) return 1;
  }
  return 0;
}
static void begin_group(int i) {
  int a = now.base[i] - 1, two_groups = 0;
  for (int m = 0; m < RANKS; ++m) {
    if (now.a_members[a] & BIT(m) && (!now.alive[m] || now.base[m] != a + 1 || now.joined[m]))
      return;
  }
  for (int b = a + 1; b != 0; b = now.a_base[b - 1]) now.worked |= BIT(b - 1);
  for (int b = a + 1; b != 0; b = now.a_base[b - 1]) {
    for (int j = 0; j < RANKS; ++j) {
      two_groups |= now.alive[j] && worked_in(j, b - 1, now.a_base[b - 1]);
    }
  }
  if (two_groups) show();
  require(!two_groups);
}
static void adopt(int i, int a) {
  int there = now.current[i] == a + 1 && now.confirmed[i];
#ifndef OLD_RULE
  if (!there) leave(i);
  now.current[i] = now.confirmed[i] = 0;
  if (there) now.joined[i] = 0;
#else
  now.current[i] = a + 1; /* to be connected yet */
#endif
  now.pending[i] = 0;
  now.base[i] = a + 1;
#ifndef OLD_RULE
  begin_group(i);
#endif
}

/* Join */
static int leads(int i, int j) {
  int s = frame_of(i, j);
  return members_of(now.base[i]) & BIT(j) && heard(i, j) && s && S_JOINED(s) && S_FOLLOW(s) == j;
}
static int leader_for(int i) {
  if (now.follow[i] != i && leads(i, now.follow[i])) return now.follow[i];
  for (int j = 0; j < RANKS; ++j) {
    if (j == i || leads(i, j)) return j;
  }
  return i;
}
/* Decide */
static int followers(int i) {
  int mask = BIT(i);
  for (int j = 0; j < RANKS; ++j) {
    int s = frame_of(i, j);
    if (j != i && heard(i, j) && members_of(now.base[i]) & BIT(j) && s && S_JOINED(s) &&
        S_FREE(s) && S_FOLLOW(s) == i) {
      mask |= BIT(j);
    }
  }
  return mask;
}
static int enough(int mask, int b, int dead) {
  int all = members_of(b);
  return 2 * count(mask & all) > count(all) ||
         (2 * count(mask & all) == count(all) && (all & ~mask & ~dead) == 0);
}
/* Whether these members of an attempt could ever follow it with a group of their own. */
static int could_go_on(int members, int a) { return 2 * count(members) >= count(now.a_members[a]); }
static int blocked(int i, int mask) {
  for (int m = 0; m < RANKS; ++m) {
    if (!(mask & BIT(m))) continue;
    int s = m == i ? status(i) : now.known[i * RANKS + m];
    for (int a = 0; a < now.attempts; ++a) {
      if (S_PENDING(s) & BIT(a) && could_go_on(now.a_members[a] & ~mask & ~now.gone[i], a) &&
          !is_void(i, a)) {
        return 1;
      }
    }
  }
  return 0;
}
static int waits(int i, int mask) {
  for (int j = 0; j < RANKS; ++j) {
    if (members_of(now.base[i]) & BIT(j) && !(mask & BIT(j)) && heard(i, j)) return 1;
  }
  return 0;
}
static int may_decide(int i) {
  return now.attempts < ATTEMPTS - 1 && now.joined[i] && !now.current[i] && now.follow[i] == i &&
         leader_for(i) == i && enough(followers(i), now.base[i], now.gone[i]) &&
         !blocked(i, followers(i));
}
static void decide(int i) {
  int a = now.attempts++, mask = followers(i);
#ifndef OLD_RULE
  if (now.attempts >= ATTEMPTS - 1) show();
  require(now.attempts < ATTEMPTS - 1);
#endif
  now.a_base[a] = now.base[i];
  now.a_leader[a] = i;
  now.a_members[a] = mask;
  for (int m = 0; m < RANKS; ++m) {
    now.a_vote[a * RANKS + m] =
        mask & BIT(m) ? S_VOTE(m == i ? status(i) : now.known[i * RANKS + m]) : 0;
  }
  now.current[i] = a + 1;
#ifdef OLD_RULE
  adopt(i, a);
#endif
}

/* What its leader has decided */
static int told(int i) {
  int s = now.follow[i] == i ? 0 : now.known[i * RANKS + now.follow[i]], d = s ? S_DECISION(s) : 0;
  return now.alive[i] && now.joined[i] && !now.current[i] && d && now.a_members[d - 1] & BIT(i) &&
                 now.a_base[d - 1] == now.base[i] && now.a_vote[(d - 1) * RANKS + i] == now.vote[i]
             ? d
             : 0;
}

/* Confirm, where it reaches all members and they have come to connect */
static int all_there(int i) {
  int a = now.current[i] - 1;
  for (int m = 0; m < RANKS; ++m) {
    if (now.a_members[a] & BIT(m) && m != i &&
        (!there(i, m) ||
         (now.current[m] != a + 1 && !(now.pending[m] & BIT(a)) && now.base[m] != a + 1))) {
      return 0;
    }
  }
  return 1;
}
static int can_connect(int i) {
  return now.alive[i] && now.current[i] && !now.confirmed[i] && all_there(i);
}
/* Connecting fails: somebody is not there, and for so long that the leader has noticed too (else it
 * would decide the same again and again) */
static int can_fail(int i) {
  if (!now.alive[i] || !now.current[i] || now.confirmed[i]) return 0;
  int a = now.current[i] - 1, leader = now.a_leader[a];
  for (int m = 0; m < RANKS; ++m) {
    if (now.a_members[a] & BIT(m) && m != i && !there(i, m) && !heard(i, m) &&
        (!there(i, leader) || now.current[leader] != a + 1 || !heard(leader, m))) {
      return 1;
    }
  }
  return 0;
}
static int knows_left(int i, int m) {
  int a = now.current[i] - 1, s = frame_of(i, m);
  return s && S_VOTE(s) > now.a_vote[a * RANKS + m] && !(S_PENDING(s) & BIT(a));
}
/* Leave: somebody is not heard, or has left */
static int must_leave(int i) {
  int a = now.current[i] - 1, leader = now.a_leader[a];
  if (leader != i) return knows_left(i, leader) || (now.confirmed[i] && !heard(i, leader));
  for (int m = 0; m < RANKS; ++m) {
    if (now.a_members[a] & BIT(m) && (!heard(i, m) || knows_left(i, m))) return 1;
  }
  return 0;
}
/* Go */
static int can_go(int i) {
  int a = now.current[i] - 1;
  if (!now.confirmed[i] || now.a_leader[a] != i) return 0;
  for (int m = 0; m < RANKS; ++m) {
    int s = frame_of(i, m);
    if (now.a_members[a] & BIT(m) && !(s && S_PENDING(s) & BIT(a))) return 0;
  }
  return 1;
}
/* What a rank does at once when it has learned something: tick() */
static void react(int i) {
  drop_void(i);
  if (!now.joined[i]) return;
#ifndef OLD_RULE
  if (now.current[i] && must_leave(i)) leave(i);
  if (now.current[i] && can_go(i)) {
    adopt(i, now.current[i] - 1);
    return;
  }
#endif
  if (now.current[i]) return;
  if (leader_for(i) != now.follow[i]) take_vote(i, leader_for(i)); /* Join */
  if (may_decide(i) && !waits(i, followers(i))) {
    decide(i);
  } else if (told(i)) {
#ifdef OLD_RULE
    adopt(i, told(i) - 1);
#else
    now.current[i] = told(i);
#endif
  }
}
static void connects(int i) {
#ifdef OLD_RULE
  now.current[i] = now.joined[i] = 0;
  begin_group(i);
#else
  if (!heard(i, now.a_leader[now.current[i] - 1])) {
    leave(i);
  } else {
    now.confirmed[i] = 1;
    now.pending[i] |= BIT(now.current[i] - 1);
  }
#endif
  react(i);
}
static void fails(int i) {
#ifdef OLD_RULE
  now.current[i] = 0;
  take_vote(i, i);
#else
  leave(i);
#endif
  react(i);
}
/* The group it is in has broken: rebuild() */
static int can_begin(int i) {
  if (!now.alive[i] || now.joined[i] || now.out[i]) return 0;
  for (int m = 0; m < RANKS; ++m) {
    if (members_of(now.base[i]) & BIT(m) && m != i &&
        (!there(i, m) || (now.base[m] == now.base[i] && now.joined[m]) || now.out[m])) {
      return 1;
    }
  }
  return 0;
}
static void begins(int i) {
  now.joined[i] = 1;
  take_vote(i, i);
  react(i);
}
/* i has heard nothing of j for too long: rightly, or because frames were lost */
static int can_notice(int i, int j) {
  return now.cut_off[i] & BIT(j) && heard(i, j) && is_looked_at(i, j);
}
static int can_miss(int i, int j) {
  return now.lost && now.alive[j] && heard(i, j) && is_looked_at(i, j);
}
static void notices(int i, int j) {
  now.silent[i] |= BIT(j);
  react(i);
}
static void finds_gone(int i, int j) {
  now.gone[i] |= BIT(j);
  react(i);
}

/* The group that follows the base of i on the way to that of a frame; -1: none */
static int next_group(int i, int s) {
  int next = -1;
  for (int b = S_BASE(s); b != 0; b = now.a_base[b - 1]) {
    if (now.a_base[b - 1] == now.base[i]) next = b - 1;
  }
  return S_BASE(s) == now.base[i] ? -1 : next;
}
/* Whether i is bound by none that it confirmed later, and that could go on without it. */
static int may_adopt(int i, int next) {
  int later = 0;
  for (int a = 0; a < now.attempts; ++a) {
    int others = now.a_members[a] & ~BIT(i) & ~now.gone[i];
#ifdef LATER_BINDS
    others = now.a_members[a];
#endif
    later |= now.pending[i] & BIT(a) && now.a_vote[a * RANKS + i] > now.a_vote[next * RANKS + i] &&
             could_go_on(others, a);
  }
  return now.pending[i] & BIT(next) && !later;
}
/* A frame of j arrives at i: Void, Adopt */
static void arrives(int i, int j, int s) {
  now.known[i * RANKS + j] = s;
  now.silent[i] &= ~BIT(j);
  now.cut_off[i] &= ~BIT(j);
  int next = next_group(i, s);
  if (next >= 0) {
    drop_void(i);
    for (int a = 0; a < now.attempts; ++a) {
      if (a != next && now.a_members[a] & BIT(j)) now.pending[i] &= ~BIT(a);
    }
    if (may_adopt(i, next)) {
      adopt(i, next);
    } else if (!(now.a_members[next] & BIT(i))) {
      leave(i);
      now.joined[i] = 0;
      now.out[i] = 1;
    }
  }
  drop_void(i);
#ifdef UNBOUND
  if (!now.current[i]) now.pending[i] = 0;
#endif
  react(i);
}
