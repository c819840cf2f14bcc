/* SPDX-License-Identifier: Apache-2.0 */
#include "deploy/scene.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct colour {
    float r, g, b; /* 0..255 */
};

#define CELL_MAX 96
#define STRETCH_MAX 3

/* What a class looks like. */
struct style {
    struct colour sky_top, sky_low, ground_near, ground_far, things[3];
    int things_low, things_high;
    float horizon;   /* height of the horizon, 0 = top; 1: none */
    float roughness; /* amplitude of texture */
    float round;     /* share of ellipses among the things */
};

const char *const scene_class_names[SCENE_CLASSES] = {"autumn", "coast", "desert", "field",  "flowers",
                                                      "forest", "night", "snow",   "street", "studio"};

static const struct style styles[SCENE_CLASSES] = {
    {{150, 180, 210},
     {230, 215, 190},
     {120, 70, 30},
     {180, 120, 50},
     {{200, 90, 20}, {230, 160, 40}, {110, 40, 20}},
     20,
     45,
     .40f,
     60,
     .8f},
    {{70, 130, 210},
     {190, 220, 240},
     {220, 200, 160},
     {30, 100, 130},
     {{240, 240, 235}, {200, 60, 50}, {40, 70, 90}},
     4,
     14,
     .45f,
     30,
     .5f},
    {{90, 150, 220},
     {240, 220, 190},
     {200, 140, 80},
     {230, 180, 120},
     {{150, 90, 50}, {90, 110, 60}, {240, 200, 150}},
     5,
     15,
     .35f,
     40,
     .6f},
    {{110, 160, 230},
     {210, 230, 240},
     {90, 130, 40},
     {150, 170, 80},
     {{60, 90, 30}, {180, 160, 70}, {130, 60, 40}},
     6,
     20,
     .5f,
     50,
     .5f},
    {{60, 110, 50},
     {90, 140, 70},
     {40, 90, 30},
     {60, 120, 50},
     {{220, 50, 90}, {250, 210, 60}, {200, 120, 220}},
     25,
     60,
     1.f,
     45,
     .95f},
    {{60, 90, 60},
     {150, 180, 120},
     {50, 40, 25},
     {40, 70, 35},
     {{40, 30, 20}, {30, 80, 40}, {100, 130, 50}},
     20,
     50,
     .6f,
     65,
     .3f},
    {{5, 8, 25},
     {30, 30, 60},
     {15, 15, 20},
     {25, 25, 40},
     {{250, 220, 140}, {60, 80, 160}, {180, 40, 60}},
     12,
     40,
     .6f,
     18,
     .4f},
    {{140, 170, 210},
     {225, 230, 240},
     {245, 247, 250},
     {215, 225, 240},
     {{50, 70, 60}, {110, 90, 80}, {180, 50, 50}},
     5,
     18,
     .4f,
     30,
     .4f},
    {{160, 170, 185},
     {205, 205, 205},
     {90, 90, 95},
     {130, 125, 120},
     {{170, 110, 90}, {60, 80, 120}, {210, 200, 180}},
     18,
     45,
     .65f,
     35,
     .1f},
    {{225, 220, 215},
     {190, 185, 180},
     {160, 150, 140},
     {200, 190, 180},
     {{180, 60, 50}, {50, 110, 140}, {220, 180, 60}},
     2,
     8,
     .7f,
     20,
     .6f},
};

/* A picture in the making. */
struct canvas {
    int width, height;
    struct colour *pixels;
    float *texture; /* about -1..1, of many scales */
    float *detail;  /* the same, another one: for things */
};

/* ---- random numbers (splitmix64) ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint32_t scene_random_next(struct scene_random *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mix(random->state) >> 32);
}

int scene_random_range(struct scene_random *random, int low, int high)
{
    return low + (int)(((uint64_t)scene_random_next(random) * (uint64_t)(high - low + 1)) >> 32);
}

float scene_random_unit(struct scene_random *random)
{
    return (float)(scene_random_next(random) >> 8) * (1.f / 16777216.f);
}

/* -1..1, more often near 0 */
static float random_bell(struct scene_random *random)
{
    float a = scene_random_unit(random); /* statements, since C leaves the order of operands open */
    return a - scene_random_unit(random);
}

/* ---- colours ---- */

static struct colour blend(struct colour a, struct colour b, float t)
{
    return (struct colour){a.r + (b.r - a.r) * t, a.g + (b.g - a.g) * t, a.b + (b.b - a.b) * t};
}

static struct colour shifted(struct colour c, float by)
{
    return (struct colour){c.r + by, c.g + by, c.b + by};
}

static struct colour varied(struct colour c, float by, struct scene_random *random)
{
    c.r += by * random_bell(random);
    c.g += by * random_bell(random);
    c.b += by * random_bell(random);
    return shifted(c, by * random_bell(random));
}

/* ---- texture: value noise, one octave after the other ---- */

static float lattice(uint64_t seed, int x, int y)
{
    return (float)(mix(seed + (uint64_t)(uint32_t)x * UINT64_C(0x9e3779b97f4a7c15) +
                       (uint64_t)(uint32_t)y * UINT64_C(0xd1b54a32d192ed03)) >>
                   40) *
               (2.f / 16777216.f) -
           1.f;
}

static float smooth(float t)
{
    return t * t * (3.f - 2.f * t);
}

struct octave {
    int cell_x, cell_y; /* pixels between the nodes of its lattice */
    float gain;
    uint64_t seed;
};

static void lattice_row(const struct octave *octave, float *row, int columns, int y)
{
    for (int i = 0; i < columns; i++)
        row[i] = octave->gain * lattice(octave->seed, i, y);
}

/* Adds a row of the lattice, `cell` pixels a node, to a row of pixels. */
static void add_row(float *out, int width, const float *row, int cell, const float *weights)
{
    for (int i = 0; i * cell < width; i++) {
        float step = row[i + 1] - row[i];
        int x0 = i * cell, count = width - x0 < cell ? width - x0 : cell;
        for (int k = 0; k < count; k++)
            out[x0 + k] += row[i] + step * weights[k];
    }
}

/* `rows` has room for three rows of the lattice. */
static void add_octave(const struct canvas *canvas, float *field, const struct octave *octave, float *rows)
{
    int cell_x = octave->cell_x, cell_y = octave->cell_y, columns = canvas->width / cell_x + 2;
    float *above = rows, *under = rows + columns, *row = rows + 2 * (size_t)columns;
    float weights[CELL_MAX * STRETCH_MAX] = {0};
    for (int k = 0; k < cell_x; k++)
        weights[k] = smooth((float)k / (float)cell_x);
    lattice_row(octave, under, columns, 0);
    for (int y = 0; y < canvas->height; y++) {
        if (y % cell_y == 0) {
            float *free_row = above;
            above = under;
            under = free_row;
            lattice_row(octave, under, columns, y / cell_y + 1);
        }
        float t = smooth((float)(y % cell_y) / (float)cell_y);
        for (int i = 0; i < columns; i++)
            row[i] = above[i] + (under[i] - above[i]) * t;
        add_row(field + (size_t)y * (size_t)canvas->width, canvas->width, row, cell_x, weights);
    }
}

/* `persistence`: how strong each finer octave is beside the coarser one. */
static bool make_texture(const struct canvas *canvas, float *field, float persistence,
                         struct scene_random *random)
{
    float *rows = malloc(3 * ((size_t)canvas->width + 2) * sizeof *rows);
    if (!rows)
        return false;
    int stretch = scene_random_range(random, 1, STRETCH_MAX); /* grass and waves run one way */
    bool flat = scene_random_range(random, 0, 1);
    float gain = .5f;
    for (int cell = CELL_MAX; cell >= 1; cell /= 2, gain *= persistence) {
        struct octave octave = {flat ? cell * stretch : cell, flat ? cell : cell * stretch, gain, 0};
        octave.seed = (uint64_t)scene_random_next(random) << 32;
        octave.seed |= scene_random_next(random);
        add_octave(canvas, field, &octave, rows);
    }
    free(rows);
    return true;
}

/* ---- the parts of a picture ---- */

static void paint_background(struct canvas *canvas, const struct style *style, struct scene_random *random)
{
    struct colour top = varied(style->sky_top, 40, random), low = varied(style->sky_low, 40, random);
    struct colour far = varied(style->ground_far, 40, random), near = varied(style->ground_near, 40, random);
    float horizon = style->horizon >= 1.f ? 2.f : style->horizon + .25f * random_bell(random);
    float slope = .15f * random_bell(random), ridge = .12f * scene_random_unit(random);
    float sky_roughness = style->roughness * (.15f + .35f * scene_random_unit(random));
    for (int y = 0; y < canvas->height; y++)
        for (int x = 0; x < canvas->width; x++) {
            size_t i = (size_t)y * (size_t)canvas->width + (size_t)x;
            float v = (float)y / (float)canvas->height, u = (float)x / (float)canvas->width;
            float line = horizon + slope * (u - .5f) + ridge * canvas->detail[x];
            float below = v - line;
            if (below < 0)
                canvas->pixels[i] = shifted(blend(top, low, v / line), sky_roughness * canvas->texture[i]);
            else
                canvas->pixels[i] = shifted(blend(far, near, below / (1.f - line + .01f)),
                                            style->roughness * (.6f + 1.2f * below) * canvas->texture[i]);
        }
}

/* A thing with an edge: an ellipse or a box, turned, lit from one side, with a texture of its own. */
struct thing {
    float x, y, half_width, half_height, cosine, sine;
    bool is_round;
    struct colour colour;
    float light_x, light_y, roughness, opacity, edge;
};

static struct thing make_thing(const struct canvas *canvas, const struct style *style,
                               struct scene_random *random)
{
    float size = (float)(canvas->width < canvas->height ? canvas->width : canvas->height);
    float scale = scene_random_unit(random);
    float extent = size * (.02f + .28f * scale * scale);
    float turn = style->round > .5f ? random_bell(random) : .15f * random_bell(random);
    float norm = 1.f / sqrtf(1.f + turn * turn);
    struct thing thing = {.cosine = norm, .sine = turn * norm};
    thing.x = (float)canvas->width * scene_random_unit(random);
    thing.y = (float)canvas->height * (.15f + .85f * scene_random_unit(random));
    thing.half_width = extent * (.4f + scene_random_unit(random));
    thing.half_height = extent * (.4f + scene_random_unit(random));
    thing.is_round = scene_random_unit(random) < style->round;
    int colour = scene_random_range(random, 0, 2);
    thing.colour = varied(style->things[colour], 70, random);
    thing.light_x = 60.f * random_bell(random);
    thing.light_y = -50.f * scene_random_unit(random);
    thing.roughness = style->roughness * (.5f + 1.2f * scene_random_unit(random));
    thing.opacity = .7f + .3f * scene_random_unit(random);
    thing.edge = scene_random_range(random, 0, 3) ? 1.f : 1.f + extent * .15f; /* some are out of focus */
    return thing;
}

/* How much of the pixel the thing covers; (*u, *v) are the pixel's place on it, -1..1. */
static float cover(const struct thing *thing, float x, float y, float *u, float *v)
{
    float dx = x - thing->x, dy = y - thing->y;
    *u = (dx * thing->cosine + dy * thing->sine) / thing->half_width;
    *v = (dy * thing->cosine - dx * thing->sine) / thing->half_height;
    float au = fabsf(*u), av = fabsf(*v);
    float distance = thing->is_round ? sqrtf(au * au + av * av) : (au > av ? au : av);
    float inside =
        (1.f - distance) * (thing->half_width < thing->half_height ? thing->half_width : thing->half_height);
    float share = inside / thing->edge + .5f;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

static int clamped(float value, int high)
{
    return value < 0 ? 0 : value > (float)high ? high : (int)value;
}

static void paint_thing(struct canvas *canvas, const struct thing *thing)
{
    float reach = (thing->half_width + thing->half_height) + thing->edge;
    int x0 = clamped(thing->x - reach, canvas->width), x1 = clamped(thing->x + reach, canvas->width);
    int y0 = clamped(thing->y - reach, canvas->height), y1 = clamped(thing->y + reach, canvas->height);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            float u, v, share = cover(thing, (float)x, (float)y, &u, &v) * thing->opacity;
            if (share <= 0)
                continue;
            size_t i = (size_t)y * (size_t)canvas->width + (size_t)x;
            float light = thing->light_x * u + thing->light_y * v + thing->roughness * canvas->detail[i];
            canvas->pixels[i] = blend(canvas->pixels[i], shifted(thing->colour, light), share);
        }
}

static void paint_things(struct canvas *canvas, const struct style *style, struct scene_random *random)
{
    int count = scene_random_range(random, style->things_low, style->things_high);
    for (int i = 0; i < count; i++) {
        struct thing thing = make_thing(canvas, style, random);
        paint_thing(canvas, &thing);
    }
}

static uint8_t to_byte(float value)
{
    float rounded = value + .5f;
    return rounded < 1 ? 0 : rounded > 255 ? 255 : (uint8_t)rounded;
}

/* Lens and sensor: darker corners, contrast, exposure, noise. */
static void develop(const struct canvas *canvas, uint8_t *out, struct scene_random *random)
{
    float vignette = .45f * scene_random_unit(random), contrast = .85f + .35f * scene_random_unit(random);
    float exposure = 30.f * random_bell(random), noise = 6.f + 24.f * scene_random_unit(random);
    for (int y = 0; y < canvas->height; y++)
        for (int x = 0; x < canvas->width; x++) {
            struct colour c = canvas->pixels[(size_t)y * (size_t)canvas->width + (size_t)x];
            float u = (float)x / (float)canvas->width - .5f, v = (float)y / (float)canvas->height - .5f;
            float gain = contrast * (1.f - vignette * 2.f * (u * u + v * v));
            float grain = noise * random_bell(random) + exposure + 128.f * (1.f - contrast);
            *out++ = to_byte(c.r * gain + grain);
            *out++ = to_byte(c.g * gain + grain);
            *out++ = to_byte(c.b * gain + grain + .4f * noise * random_bell(random));
        }
}

uint8_t *scene_draw(int scene_class, int width, int height, struct scene_random *random)
{
    const struct style *style = &styles[scene_class];
    size_t count = (size_t)width * (size_t)height;
    struct canvas canvas = {.width = width, .height = height};
    uint8_t *out = malloc(count * 3);
    canvas.pixels = malloc(count * sizeof *canvas.pixels);
    canvas.texture = calloc(count, sizeof *canvas.texture);
    canvas.detail = calloc(count, sizeof *canvas.detail);
    bool good = out && canvas.pixels && canvas.texture && canvas.detail;
    good = good && make_texture(&canvas, canvas.texture, .8f + .18f * scene_random_unit(random), random) &&
           make_texture(&canvas, canvas.detail, .75f + .22f * scene_random_unit(random), random);
    if (good) {
        paint_background(&canvas, style, random);
        paint_things(&canvas, style, random);
        develop(&canvas, out, random);
    }
    free(canvas.pixels);
    free(canvas.texture);
    free(canvas.detail);
    if (good)
        return out;
    free(out);
    return NULL;
}
