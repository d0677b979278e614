#!/bin/sh
# Tomcat on port 8080.
export CATALINA_HOME=/usr/share/tomcat10 CATALINA_BASE=/srv/tomcat
export JAVA_HOME=/usr/lib/jvm/default-java
export CATALINA_OPTS="-Xmx96m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.security.egd=file:/dev/urandom"
exec "$CATALINA_HOME/bin/catalina.sh" run
