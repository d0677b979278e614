# Runs once in the image's root file system.
chmod +x /entrypoint.sh
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
mkdir -p /srv/tomcat/webapps/demo/WEB-INF/lib /srv/tomcat/conf /srv/tomcat/logs /srv/tomcat/temp /srv/tomcat/work
cp -r /etc/tomcat10/. /srv/tomcat/conf/
cp /usr/share/java/mariadb-java-client.jar /srv/tomcat/webapps/demo/WEB-INF/lib/
mv /index.jsp /srv/tomcat/webapps/demo/index.jsp
