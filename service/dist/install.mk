# Installing: what goes where, and how it is taken away again. Man pages are made where scdoc is.
#
#   PREFIX=/usr/local
#   SYSCONFDIR=dir      default: /etc for PREFIX=/usr, else PREFIX/etc
#   LIBDIR=dir          default: PREFIX/lib; /usr/lib/x86_64-linux-gnu in a Debian package
#   DESTDIR=dir         in front of everything, for packagers

PREFIX ?= /usr/local
SYSCONFDIR ?= $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)
LIBDIR ?= $(PREFIX)/lib
DEST = $(DESTDIR)$(PREFIX)
DESTLIB = $(DESTDIR)$(LIBDIR)

# ---- pkg-config: always made again, because PREFIX may be another than the last time ----

PCS := $(BUILD)/attnd.pc $(if $(LIBATTND_CUDA),$(BUILD)/attnd-cuda.pc)
.PHONY: $(PCS)
all: $(PCS)

pc_head = 'prefix=$(PREFIX)' 'includedir=$${prefix}/include/attnd' 'libdir=$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))' '' \
          'Name: $(1)' 'Description: attention service, $(2)' 'Version: $(VERSION)'
$(BUILD)/attnd.pc:
	@mkdir -p $(@D)
	@printf '%s\n' $(call pc_head,attnd,client library) \
	  'Requires.private: libprotobuf-c' 'Cflags: -I$${includedir}' \
	  'Libs: -L$${libdir} -lattnd' 'Libs.private: -pthread' > $@
# Engines call the driver themselves: its library is theirs to link, and cuda.h theirs to find.
$(BUILD)/attnd-cuda.pc:
	@mkdir -p $(@D)
	@printf '%s\n' $(call pc_head,attnd-cuda,memory and streams of a GPU) \
	  'Requires: attnd' 'Libs: -L$${libdir} -lattnd-cuda' 'Libs.private: -lcuda' > $@

# ---- man pages: dir/name.section.scd beside what it describes ----

MAN_SOURCES := $(wildcard service/*.scd service/*/*.scd bench/*/*.scd client/*.scd \
                 persistent/*/*/*.scd)
MAN := $(addprefix $(BUILD)/man/,$(patsubst %.scd,%,$(notdir $(MAN_SOURCES))))
.PHONY: man
man: $(MAN)
vpath %.scd $(sort $(dir $(MAN_SOURCES)))
$(BUILD)/man/%: %.scd VERSION
	@mkdir -p $(@D)
	sed 's/@VERSION@/$(VERSION)/' $< | SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH-$(MAN_DATE)} scdoc > $@
# A page is as old as its last change, so that two builds of one commit are the same.
MAN_DATE = $(or $(shell git log -1 --format=%ct -- $< 2>/dev/null),0)
HAVE_SCDOC := $(shell command -v scdoc)

install-man: $(if $(HAVE_SCDOC),$(MAN))
	$(if $(HAVE_SCDOC),for page in $(MAN); do \
	  install -Dm644 -t $(DEST)/share/man/man$${page##*.} $$page || exit 1; done; \
	  $(foreach page,$(CALL_PAGES),for call in $(call calls_of,$(page)); do \
	  echo .so man3/$(page) > $(DEST)/share/man/man3/$$call.3; done;), \
	  @echo 'install: no man pages, because scdoc is not there')
	$(if $(HAVE_SCDOC),$(if $(HAVE_PYTHON),$(install_calls),\
	  @echo 'install: no page for each call, because python3 is not there'))
# Each call is found under its own name: in the page of its header, or where python3 is in a page of
# its own, made of the comment that the header has on it.
HAVE_PYTHON := $(shell command -v python3)
CALL_HEADERS := $(wildcard client/attnd*.h) client/cuda/attnd_cuda.h schemas/errors.h
CALLS_DATE = $(shell date -u -d @$(or $(shell git log -1 --format=%ct -- $(CALL_HEADERS) 2>/dev/null),0) +%F)
install_calls = rm -rf $(BUILD)/man/calls && \
	  service/dist/call_pages.py $(BUILD)/man/calls $(VERSION) $(CALLS_DATE) $(CALL_HEADERS) \
	    >/dev/null && rm -f $(CALL_PAGES:%=$(BUILD)/man/calls/%) && \
	  install -Dm644 -t $(DEST)/share/man/man3 $(BUILD)/man/calls/*.3
bracket := (
CALL_PAGES := $(notdir $(patsubst %.scd,%,$(wildcard client/*.3.scd)))
calls_of = $(filter-out $(basename $(1)),$(sort \
  $(shell sed -nE 's/^[a-z]+ .*(attnd_[a-z_]+)\$(bracket).*/\1/p' client/$(1).scd)))

# ---- everything ----

INSTALLED_PROGRAMS = $(PROGRAMS) $(BUILD)/bench/attnd-replay $(VARIANT_PROGRAM)
# The worker and the mover are nobody's to start.
COMPLETED = $(filter-out %/attnd-worker %/attnd-mover,$(INSTALLED_PROGRAMS))
unit = sed 's:@PREFIX@:$(PREFIX):; s:@SYSCONFDIR@:$(SYSCONFDIR):' service/dist/$(1) \
         > $(DEST)/lib/systemd/system/$(1)

.PHONY: install install-man
install: all install-man
	install -Dm755 -t $(DEST)/bin $(INSTALLED_PROGRAMS)
	install -Dm644 -t $(DESTLIB) $(LIBATTND) $(LIBATTND_SO) $(LIBATTND_CUDA) $(LIBATTND_CUDA_SO)
	for so in $(notdir $(LIBATTND_SO) $(LIBATTND_CUDA_SO)); do ln -sf $$so $(DESTLIB)/$${so%.0}; done
	install -Dm644 -t $(DESTLIB)/pkgconfig $(PCS)
	install -Dm644 -t $(DEST)/include/attnd $(wildcard client/attnd*.h) \
	  $(if $(LIBATTND_CUDA),client/cuda/attnd_cuda.h)
	install -Dm644 -t $(DEST)/include/attnd/schemas schemas/errors.h schemas/executor.h schemas/variant.h $(VERSION_H)
	test ! -d $(BUILD)/kernels || \
	  install -Dm644 -t $(DEST)/lib/attnd/kernels $(BUILD)/kernels/*.fatbin
	! ls $(BUILD)/kernels/portable/*.fatbin >/dev/null 2>&1 || \
	  install -Dm644 -t $(DEST)/lib/attnd/kernels/portable $(BUILD)/kernels/portable/*.fatbin
	install -d $(DEST)/share/attnd
	cp -rT $(VARIANT_SOURCES) $(DEST)/share/attnd/kernels
	install -d $(DEST)/lib/systemd/system
	$(call unit,attnd.service)
	$(call unit,attnd.socket)
	$(call unit,attnd@.service)
	$(call unit,attnd@.socket)
	install -Dm644 -t $(DEST)/share/doc/attnd service/dist/attnd.conf service/dist/CONTAINERS.md
	test -e $(DESTDIR)$(SYSCONFDIR)/attnd/attnd.conf || \
	  install -Dm644 -t $(DESTDIR)$(SYSCONFDIR)/attnd service/dist/attnd.conf
	for program in $(notdir $(COMPLETED)); do \
	  install -Dm644 service/dist/completion/attnd.bash \
	    $(DEST)/share/bash-completion/completions/$$program || exit 1; done
	install -Dm644 service/dist/completion/attnd.zsh $(DEST)/share/zsh/site-functions/_attnd

# What install put in place. The configuration file stays if the operator has changed it.
.PHONY: uninstall
uninstall:
	rm -f $(addprefix $(DEST)/bin/,$(notdir $(INSTALLED_PROGRAMS)))
	rm -f $(DESTLIB)/libattnd.* $(DESTLIB)/libattnd-cuda.*
	rm -f $(DESTLIB)/pkgconfig/attnd.pc $(DESTLIB)/pkgconfig/attnd-cuda.pc
	rm -f $(addprefix $(DEST)/lib/systemd/system/attnd,.service .socket @.service @.socket)
	rm -f $(DEST)/share/man/man3/attnd_*.3
	rm -f $(foreach page,$(notdir $(MAN)),$(DEST)/share/man/man$(lastword $(subst ., ,$(page)))/$(page))
	rm -f $(addprefix $(DEST)/share/bash-completion/completions/,$(notdir $(COMPLETED)))
	rm -f $(DEST)/share/zsh/site-functions/_attnd
	rm -rf $(DEST)/include/attnd $(DEST)/share/doc/attnd $(DEST)/share/attnd $(DEST)/lib/attnd
	if cmp -s service/dist/attnd.conf $(DESTDIR)$(SYSCONFDIR)/attnd/attnd.conf; then \
	  rm -f $(DESTDIR)$(SYSCONFDIR)/attnd/attnd.conf; \
	  rmdir --ignore-fail-on-non-empty $(DESTDIR)$(SYSCONFDIR)/attnd; fi
