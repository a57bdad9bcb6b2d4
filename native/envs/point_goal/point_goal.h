/* Point goal: a point robot drives from goal to goal among hazards that it may cross at a cost. It
   stands in for Safety Gym's PointGoal1 (Ray, Achiam and Amodei, 2019): the same task and sensors,
   simpler physics, walls around. */
#include "fugu_env.h"

enum { POINT_GOAL_BINS = 16, POINT_GOAL_MAX_HAZARDS = 16, POINT_GOAL_TRIES = 64 };

#define POINT_GOAL_STEP 0.02f  /* seconds */
#define POINT_GOAL_WALL 2.0f   /* the arena is twice as wide */
#define POINT_GOAL_PLACES 1.5f /* where things are put, on either side of the middle */
#define POINT_GOAL_TOP_SPEED 1.5f
#define POINT_GOAL_TOP_SPIN 3.0f
#define POINT_GOAL_SIGHT 3.0f

typedef struct PointGoalPlace {
    float x, y;
} PointGoalPlace;

typedef struct PointGoal {
    FuguEnv base;
    PointGoalPlace robot, velocity, goal;
    float heading, spin;
    float cost, goals; /* of this episode */
    int32_t hazards;
    float hazard_radius, goal_radius;
    PointGoalPlace hazard[POINT_GOAL_MAX_HAZARDS];
} PointGoal;

typedef struct PointGoalView {
    float forward, left, spin;
    float goal[POINT_GOAL_BINS], hazard[POINT_GOAL_BINS];
} PointGoalView;

static const FuguSetting point_goal_settings[] = {
    FUGU_MAX_STEPS(1000),
    FUGU_INT(PointGoal, hazards, 8, 0, POINT_GOAL_MAX_HAZARDS, "circles that cost"),
    FUGU_REAL(PointGoal, hazard_radius, 0.2, 0.01, 0.3, "m"),
    FUGU_REAL(PointGoal, goal_radius, 0.3, 0.05, 0.5, "m"),
};

static void point_goal_describe(const PointGoal* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    agent->costs = 1;
    fugu_floats(&agent->observation, "", 0, -1, 1, sizeof(PointGoalView) / sizeof(float),
                "speed ahead, speed to the left and spin, as parts of the highest; then for 16 "
                "directions counterclockwise from ahead how close the goal is, 0 to 1; then the "
                "same of the closest hazard");
    fugu_floats(&agent->action, "", 0, -1, 1, 2, "force ahead; turn to the left");
    spec->reward = "metres that the goal came closer, and 1 for each goal; cost 1 for every step "
                   "within a hazard";
    fugu_log(spec, "cost");
    fugu_log(spec, "goals");
    fugu_key_of(spec, "up", 0, 0, 0, 0, 1);
    fugu_key_of(spec, "down", 0, 0, 0, 0, -1);
    fugu_key_of(spec, "left", 0, 0, 0, 1, 1);
    fugu_key_of(spec, "right", 0, 0, 0, 1, -1);
    fugu_picture(spec, 4.4f, 4.9f, 50);
}

static inline void point_goal_init(PointGoal* env) {
    (void)env;
}

static inline float point_goal_distance(PointGoalPlace a, PointGoalPlace b) {
    return fugu_sqrt((a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y));
}

/* A place that keeps its distance from the robot and from the first `count` hazards. Tries are
   bounded: they suffice for all but the largest circles, where the last place is taken. */
static PointGoalPlace point_goal_find(PointGoal* env, int32_t count, float from_robot,
                                      float from_hazards) {
    PointGoalPlace place = {0, 0};
    for (int32_t tries = 0; tries < POINT_GOAL_TRIES; ++tries) {
        place.x = fugu_uniform(&env->base.random, -POINT_GOAL_PLACES, POINT_GOAL_PLACES);
        place.y = fugu_uniform(&env->base.random, -POINT_GOAL_PLACES, POINT_GOAL_PLACES);
        bool good = point_goal_distance(place, env->robot) > from_robot;
        for (int32_t i = 0; i < count && good; ++i)
            good = point_goal_distance(place, env->hazard[i]) > from_hazards;
        if (good)
            break;
    }
    return place;
}

/* The goal's middle can be reached without cost, and not by standing still. */
static void point_goal_new_goal(PointGoal* env) {
    env->goal =
        point_goal_find(env, env->hazards, 2.0f * env->goal_radius, env->hazard_radius + 0.1f);
}

static void point_goal_reset(PointGoal* env) {
    const PointGoalPlace zero = {0, 0};
    env->robot.x = fugu_uniform(&env->base.random, -POINT_GOAL_PLACES, POINT_GOAL_PLACES);
    env->robot.y = fugu_uniform(&env->base.random, -POINT_GOAL_PLACES, POINT_GOAL_PLACES);
    env->heading = fugu_uniform(&env->base.random, -FUGU_PI, FUGU_PI);
    env->velocity = zero;
    env->spin = env->cost = env->goals = 0.0f;
    for (int32_t i = 0; i < env->hazards; ++i)
        env->hazard[i] =
            point_goal_find(env, i, env->hazard_radius + 0.2f, 1.8f * env->hazard_radius);
    point_goal_new_goal(env);
}

static inline void point_goal_step(PointGoal* env, FuguIO* io) {
    const float* action = io->groups[0].actions;
    const float force = fugu_clamp(action[0], -1.0f, 1.0f);
    const float turn = fugu_clamp(action[1], -1.0f, 1.0f);
    const float before = point_goal_distance(env->robot, env->goal);
    /* Drag brings the speed to that of the force in 0.3 s, the motor the spin to its own in 0.1. */
    const float drive = POINT_GOAL_STEP / 0.3f, steer = POINT_GOAL_STEP / 0.1f;
    const float speed = POINT_GOAL_TOP_SPEED * force;
    env->velocity.x += drive * (speed * fugu_cos(env->heading) - env->velocity.x);
    env->velocity.y += drive * (speed * fugu_sin(env->heading) - env->velocity.y);
    env->spin += steer * (POINT_GOAL_TOP_SPIN * turn - env->spin);
    env->heading = fugu_wrap_angle(env->heading + POINT_GOAL_STEP * env->spin);
    const float x = env->robot.x + POINT_GOAL_STEP * env->velocity.x;
    const float y = env->robot.y + POINT_GOAL_STEP * env->velocity.y;
    env->robot.x = fugu_clamp(x, -POINT_GOAL_WALL, POINT_GOAL_WALL);
    env->robot.y = fugu_clamp(y, -POINT_GOAL_WALL, POINT_GOAL_WALL);
    env->velocity.x = env->robot.x == x ? env->velocity.x : 0.0f; /* a wall stops it */
    env->velocity.y = env->robot.y == y ? env->velocity.y : 0.0f;

    float cost = 0.0f;
    for (int32_t i = 0; i < env->hazards; ++i) {
        const float dx = env->robot.x - env->hazard[i].x, dy = env->robot.y - env->hazard[i].y;
        const bool within = dx * dx + dy * dy < env->hazard_radius * env->hazard_radius;
        cost = within ? 1.0f : cost;
    }
    const float after = point_goal_distance(env->robot, env->goal);
    const float reached = after < env->goal_radius ? 1.0f : 0.0f;
    env->cost += cost;
    env->goals += reached;
    io->groups[0].rewards[0] = before - after + reached;
    io->groups[0].costs[0] += cost;
    if (reached > 0)
        point_goal_new_goal(env);
    if (env->base.max_steps && env->base.step >= env->base.max_steps) {
        io->log[0] += env->cost;
        io->log[1] += env->goals;
    }
}

/* What the robot sees of one thing: in which bin, where within it (0 to 1), and how close. */
typedef struct PointGoalSights {
    int32_t bin[POINT_GOAL_MAX_HAZARDS];
    float part[POINT_GOAL_MAX_HAZARDS], close[POINT_GOAL_MAX_HAZARDS];
} PointGoalSights;

/* Without branches, so that all things are looked at side by side. The angle comes from a
   polynomial for the arc tangent on [0, 1], right to 1e-5, and is folded out by its octant. */
static inline void point_goal_look(const PointGoal* env, const PointGoalPlace* things, int count,
                                   float cosine, float sine, PointGoalSights* sights) {
    for (int i = 0; i < count; ++i) {
        const float dx = things[i].x - env->robot.x, dy = things[i].y - env->robot.y;
        const float ahead = dx * cosine + dy * sine, left = dy * cosine - dx * sine;
        const float a = fugu_abs(ahead), l = fugu_abs(left);
        const float t = fugu_min(a, l) / (fugu_max(a, l) + 1e-12f), s = t * t;
        const float low =
            t * (0.99997726f +
                 s * (-0.33262347f +
                      s * (0.19354346f + s * (-0.11643287f + s * (0.05265332f - s * 0.0117212f)))));
        const float high = 0.5f * FUGU_PI - low;
        const float quarter = l > a ? high : low, beyond = FUGU_PI - quarter;
        const float half = ahead < 0 ? beyond : quarter;
        const float angle = left < 0 ? -half : half;
        const float bins = angle * (POINT_GOAL_BINS / (2.0f * FUGU_PI)) + POINT_GOAL_BINS;
        sights->bin[i] = (int32_t)bins;
        sights->part[i] = bins - (float)sights->bin[i];
    }
    for (int i = 0; i < count; ++i) {
        const float distance = point_goal_distance(things[i], env->robot);
        sights->close[i] = fugu_max(0.0f, 1.0f - distance * (1.0f / POINT_GOAL_SIGHT));
    }
}

/* Shows things in the bin they are in, and partly in its neighbours, so that what is seen does not
   jump as the robot turns. */
static inline void point_goal_show(const PointGoalSights* sights, int count, float* lidar) {
    for (int i = 0; i < POINT_GOAL_BINS; ++i)
        lidar[i] = 0.0f;
    for (int i = 0; i < count; ++i) {
        const float close = sights->close[i], part = sights->part[i];
        const int bin = sights->bin[i] & (POINT_GOAL_BINS - 1);
        const int next = (bin + 1) & (POINT_GOAL_BINS - 1);
        const int last = (bin - 1) & (POINT_GOAL_BINS - 1);
        lidar[bin] = fugu_max(lidar[bin], close);
        lidar[next] = fugu_max(lidar[next], part * close);
        lidar[last] = fugu_max(lidar[last], (1.0f - part) * close);
    }
}

static inline void point_goal_observe(PointGoal* env, FuguIO* io) {
    PointGoalView* view = io->groups[0].observations;
    PointGoalSights sights;
    const float cosine = fugu_cos(env->heading), sine = fugu_sin(env->heading);
    const float forward = env->velocity.x * cosine + env->velocity.y * sine;
    const float left = env->velocity.y * cosine - env->velocity.x * sine;
    view->forward = fugu_clamp(forward * (1.0f / POINT_GOAL_TOP_SPEED), -1.0f, 1.0f);
    view->left = fugu_clamp(left * (1.0f / POINT_GOAL_TOP_SPEED), -1.0f, 1.0f);
    view->spin = fugu_clamp(env->spin * (1.0f / POINT_GOAL_TOP_SPIN), -1.0f, 1.0f);
    point_goal_look(env, &env->goal, 1, cosine, sine, &sights);
    point_goal_show(&sights, 1, view->goal);
    point_goal_look(env, env->hazard, env->hazards, cosine, sine, &sights);
    point_goal_show(&sights, env->hazards, view->hazard);
}

static void point_goal_draw(const PointGoal* env, FuguCanvas* canvas) {
    const float middle = 2.2f, top = 2.7f; /* of the arena; its y grows upward */
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, middle - 2.1f, top - 2.1f, 4.2f, 4.2f, 0x9AA5A0);
    fugu_rectangle(canvas, middle - 2.05f, top - 2.05f, 4.1f, 4.1f, 0xEAE4D3);
    const float goal_x = middle + env->goal.x, goal_y = top - env->goal.y;
    fugu_circle(canvas, goal_x, goal_y, env->goal_radius, 0x81B29A);
    fugu_circle(canvas, goal_x, goal_y, 0.7f * env->goal_radius, 0xA9CDB9);
    fugu_circle(canvas, goal_x, goal_y, 0.35f * env->goal_radius, 0x81B29A);
    bool within = false;
    for (int32_t i = 0; i < env->hazards; ++i) {
        const float x = middle + env->hazard[i].x, y = top - env->hazard[i].y;
        fugu_circle(canvas, x, y, env->hazard_radius, 0xE07A5F);
        fugu_circle(canvas, x, y, 0.8f * env->hazard_radius, 0xF0A48F);
        within = within || point_goal_distance(env->robot, env->hazard[i]) < env->hazard_radius;
    }
    const float x = middle + env->robot.x, y = top - env->robot.y;
    const float dx = 0.24f * fugu_cos(env->heading), dy = -0.24f * fugu_sin(env->heading);
    fugu_triangle(canvas, x + dx, y + dy, x - 0.4f * dy, y + 0.4f * dx, x + 0.4f * dy,
                  y - 0.4f * dx, 0x2F4858);
    fugu_circle(canvas, x, y, 0.1f, within ? 0xC0392B : 0x2F4858);
    fugu_number(canvas, 1.2f, 0.3f, 0.25f, 0x2F4858, "goals ", (int64_t)env->goals);
    fugu_number(canvas, 3.2f, 0.3f, 0.25f, 0xC0392B, "cost ", (int64_t)env->cost);
}

FUGU_ENVIRONMENT(PointGoal, point_goal, "Drive from goal to goal, around the hazards.")
