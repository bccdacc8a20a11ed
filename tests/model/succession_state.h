/* The state of succession.pml as its steps see it. */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 8
#endif

extern void (*uerror)(char*);
#define require(x) ((x) ? (void)0 : uerror("assertion violated: " #x))
#define BIT(x) (1 << (x))
#define S_VOTE(s) ((s) & 15)
#define S_BASE(s) (((s) >> 4) & 15)
#define S_FOLLOW(s) (((s) >> 8) & 7)
#define S_JOINED(s) (((s) >> 11) & 1)
#define S_DECISION(s) (((s) >> 12) & 15)
#define S_FREE(s) (((s) >> 16) & 1)
#define S_PENDING(s) (((s) >> 17) & 255)

/* For whoever reads a trail: pan -r. */
static void show(void) {
  for (int i = 0; i < RANKS; ++i) {
    printf(
        "rank %d: alive %d side %d vote %d base %d follow %d joined %d out %d current %d confirmed "
        "%d "
        "pending %x gone %x silent %x cut off %x refused %x\n",
        i, now.alive[i], now.side[i], now.vote[i], now.base[i], now.follow[i], now.joined[i],
        now.out[i], now.current[i], now.confirmed[i], now.pending[i], now.gone[i], now.silent[i],
        now.cut_off[i], now.refused[i]);
  }
  for (int a = 0; a < now.attempts; ++a) {
    printf("attempt %d: base %d leader %d members %x\n", a + 1, now.a_base[a], now.a_leader[a],
           now.a_members[a]);
  }
}

static int linked(int i, int j) { return now.side[i] == now.side[j]; }
static int there(int i, int j) { return linked(i, j) && now.alive[j]; }
static int heard(int i, int j) { return i == j || !((now.silent[i] | now.gone[i]) & BIT(j)); }
static int members_of(int b) { return b == 0 ? BIT(RANKS) - 1 : now.a_members[b - 1]; }
static int count(int mask) { return __builtin_popcount(mask); }

/* A frame. Bit 30 makes it no zero. */
static int status(int j) {
  int c = now.current[j], leads = c && now.a_leader[c - 1] == j;
  return 1 << 30 | now.vote[j] | now.base[j] << 4 | now.follow[j] << 8 | now.joined[j] << 11 |
         (leads ? c : 0) << 12 | (c == 0) << 16 | now.pending[j] << 17;
}
